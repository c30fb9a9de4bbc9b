// grace demo: everything on the small model in the box, with a table and a page at the end.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <memory>
#include <thread>
#include <utility>

#include "analysis.h"
#include "context.h"
#include "grace/files/json_file.h"
#include "grace/files/mapped_file.h"
#include "grace/planner/budget.h"
#include "grace/planner/planner.h"
#include "launch.h"
#include "page.h"
#include "profile.h"
#include "progress.h"
#include "recorded_run.h"
#include "run_summary.h"

namespace grace::app {
namespace {

struct Flags {
  EngineFlags engine;
  std::string html = "out/demo.html";
  int prompts = 36, max_new_tokens = 64, profile_tokens = 4096;
  bool json = false;
};

using Lists = std::vector<std::vector<std::int32_t>>;

// Says what stage is over and how long it took; silent with --json.
class Stages {
 public:
  explicit Stages(bool silent) : silent_(silent), clock_("") {}
  void done(const std::string& what) {
    const double now = clock_.seconds();
    if (!silent_) print(fmt::format("[{:6.1f} s] {}\n", now - last_, what));
    std::fflush(stdout);
    last_ = now;
  }

 private:
  bool silent_;
  Progress clock_;
  double last_ = 0;
};

struct Kind {
  std::string name;
  Lists sequences;
  std::vector<LayerStats> stats;
};

// The profiling texts, one kind each, cut to the same number of tokens.
Result<std::vector<Kind>> kinds_of(const Job& job, const Tokenizer& tokenizer, int most_tokens) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(job.model / "heldout/profile", error))
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  if (error || files.empty())
    return invalid_input(fmt::format("{}: no heldout/profile/*.txt to profile on", job.model.string()));
  std::ranges::sort(files);
  std::vector<Kind> kinds;
  for (const auto& file : files) {
    std::vector<std::int32_t> ids = GRACE_TRY(read_and_encode(tokenizer, file));
    ids.resize(std::min(ids.size(), static_cast<std::size_t>(most_tokens)));
    kinds.push_back({file.stem().string(), windows_of(ids, std::min(256, job.config.max_positions)), {}});
  }
  return kinds;
}

Result<Trace> profile_all(Ranks& ranks, const Job& job, const std::vector<Kind>& kinds) {
  Lists sequences;
  for (const Kind& kind : kinds)
    sequences.insert(sequences.end(), kind.sequences.begin(), kind.sequences.end());
  ProfileOptions options;
  options.source = "heldout/profile";
  return profile_on_ranks(ranks, job, sequences, options);
}

// As many prompts of each kind as of any other, in the order of the file.
Result<Lists> prompts_of(const Job& job, const Tokenizer& tokenizer, int count) {
  const std::vector<Prompt> all = GRACE_TRY(read_prompts(job.model / "heldout/prompts.jsonl"));
  std::vector<std::string> kinds;
  for (const Prompt& prompt : all)
    if (std::ranges::find(kinds, prompt.kind) == kinds.end()) kinds.push_back(prompt.kind);
  Lists ids;
  for (std::size_t nth = 0; ids.size() < static_cast<std::size_t>(count) && nth < all.size(); ++nth)
    for (const std::string& kind : kinds) {
      std::size_t seen = 0;
      for (const Prompt& prompt : all) {
        if (prompt.kind != kind || seen++ != nth || ids.size() >= static_cast<std::size_t>(count)) continue;
        ids.push_back(GRACE_TRY(tokenizer.encode(prompt.text)));
      }
    }
  return ids;
}

struct Runs {
  RecordedRun vanilla, grace, joint;
  bool same_text() const { return vanilla.outputs == grace.outputs && vanilla.outputs == joint.outputs; }
};

double fall_of_cross_bytes(const Runs& runs) {
  const auto before = static_cast<double>(summarise(runs.vanilla.record).whole.cross_node_bytes());
  return before > 0 ? 1 - static_cast<double>(summarise(runs.grace.record).whole.cross_node_bytes()) / before
                    : 0;
}

report::Table result_table(const Runs& runs, const Job& job) {
  const PhaseSummary before = summarise(runs.vanilla.record).whole,
                     after = summarise(runs.grace.record).whole, joint = summarise(runs.joint.record).whole;
  report::Table table;
  table.title = fmt::format("{} prompts, {} new tokens, {}, dispatch {}", runs.vanilla.record.prompts,
                            runs.vanilla.record.new_tokens, job.cluster.name, name_of(job.dispatch));
  table.columns = {"", "vanilla", "grace", "change", runs.joint.record.strategy, "change"};
  const auto row = [&](const std::string& name, const std::array<double, 3>& values, const char* unit,
                       int digits) {
    auto& cells = table.rows.emplace_back(1, name);
    for (std::size_t i = 0; i < values.size(); ++i) {
      cells.push_back(fmt::format("{:.{}f} {}", values[i], digits, unit));
      if (i > 0)
        cells.push_back(values[0] > 0 ? fmt::format("{:+.1f} %", (values[i] / values[0] - 1) * 100) : "");
    }
  };
  const auto megabytes = [](std::int64_t bytes) { return static_cast<double>(bytes) / 1e6; };
  row("bytes across nodes",
      {megabytes(before.cross_node_bytes()), megabytes(after.cross_node_bytes()),
       megabytes(joint.cross_node_bytes())},
      "MB", 2);
  row("bytes inside nodes",
      {megabytes(before.intra_node_bytes()), megabytes(after.intra_node_bytes()),
       megabytes(joint.intra_node_bytes())},
      "MB", 2);
  row("load deviation", {before.load_deviation * 100, after.load_deviation * 100, joint.load_deviation * 100},
      "%", 1);
  row("all-to-all, slowest rank", {before.all_to_all_s, after.all_to_all_s, joint.all_to_all_s}, "s", 2);
  row("idle, slowest rank", {before.idle_s, after.idle_s, joint.idle_s}, "s", 2);
  row("wall time*", {runs.vanilla.record.wall_s(), runs.grace.record.wall_s(), runs.joint.record.wall_s()},
      "s", 2);
  const auto same = [&](const RecordedRun& run) {
    return run.outputs == runs.vanilla.outputs ? "yes" : "NO";
  };
  table.rows.push_back({"same text", "", same(runs.grace), "", same(runs.joint), ""});
  return table;
}

std::string footnote(const Job& job) {
  return fmt::format(
      "* {} ranks share {} cores: not a speed figure; the times above it suffer from that too.\n"
      "joint-slow holds at most as many copies on a device as grace's fullest holds in that layer.",
      job.cluster.num_devices(), std::thread::hardware_concurrency());
}

report::Table kinds_table(const std::vector<Kind>& kinds) {
  report::Table table{"Share of the assignments that the busiest quarter of the experts takes",
                      {"text", "mean of layers", "layers at 40 % or more"},
                      {}};
  for (const Kind& kind : kinds) {
    double mean = 0;
    int skewed = 0;
    for (const LayerStats& stats : kind.stats) {
      const double share = busiest_quarter(stats);
      mean += share / static_cast<double>(kind.stats.size());
      skewed += share >= 0.4 ? 1 : 0;
    }
    table.rows.push_back(
        {kind.name, fmt::format("{:.1f} %", mean * 100), fmt::format("{} of {}", skewed, kind.stats.size())});
  }
  return table;
}

// Counts of each kind's own tokens, which stand in the trace one kind after another; "all" comes last.
void count_kinds(const Trace& trace, std::vector<Kind>& kinds, ThreadPool& pool) {
  int first = 0;
  for (Kind& kind : kinds) {
    std::vector<int> sequences(kind.sequences.size());
    for (int& sequence : sequences) sequence = first++;
    kind.stats = count_layers(select_sequences(trace, sequences), pool);
  }
  kinds.push_back({"all", {}, count_layers(trace, pool)});
}

Json json_of(const RunRecord& record) {
  const PhaseSummary sum = summarise(record).whole;
  return {{"strategy", record.strategy},
          {"cross_node_bytes", sum.cross_node_bytes()},
          {"intra_node_bytes", sum.intra_node_bytes()},
          {"load_deviation", sum.load_deviation},
          {"all_to_all_s", sum.all_to_all_s},
          {"idle_s", sum.idle_s},
          {"wall_s", record.wall_s()},
          {"prompts", record.prompts},
          {"new_tokens", record.new_tokens}};
}

// Everything there is to show, once all stages are over.
struct Story {
  const Job& job;
  const Plan& plan;
  const Trace& trace;
  const std::vector<Kind>& kinds;
  const Runs& runs;
};

Status write_page(const std::string& path, const Story& story, const std::vector<LayerFigures>& figures) {
  report::Page page;
  page.title = "Grouped experts, nearer tokens";
  page.summary = fmt::format(
      "{} on {}: the same prompts as plain expert parallelism (vanilla) and by plans learned from a profile "
      "(grace, joint-slow).",
      story.job.config.name, story.job.cluster.name);
  page.verdict = fmt::format("Bytes across nodes fell by {:.1f} %; the text is {}.",
                             fall_of_cross_bytes(story.runs) * 100,
                             story.runs.same_text() ? "the same" : "NOT the same");
  const std::vector<LayerStats>& stats = story.kinds.back().stats;
  page.sections.push_back({"What moved", footnote(story.job), {result_table(story.runs, story.job)}});
  page.sections.push_back({"Hot experts", "", {kinds_table(story.kinds)}});
  const PlanEffect effect =
      GRACE_TRY(effect_of(story.trace, story.plan, story.job.cluster, story.job.dispatch, stats, figures));
  add_plan_sections(page, story.plan, story.job.cluster, effect, stats);
  report::Section timelines{"One layer", "What each rank did, and what it waited for.", {}};
  for (const RecordedRun* run : {&story.runs.vanilla, &story.runs.grace, &story.runs.joint})
    timelines.pictures.emplace_back(layer_timeline(run->record, 0, 0));
  page.sections.push_back(std::move(timelines));
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  return write_text_atomically(path, report::html(page));
}

Status tell(const Flags& flags, const Story& story) {
  const std::vector<LayerFigures> figures =
      figures_of(story.plan, story.kinds.back().stats, flags.engine.seed);
  if (!flags.html.empty()) GRACE_TRY(write_page(flags.html, story, figures));
  const double fall = fall_of_cross_bytes(story.runs);
  if (flags.json) {
    const LayerFigures mean = mean_of(figures);
    print_json({{"vanilla", json_of(story.runs.vanilla.record)},
                {"grace", json_of(story.runs.grace.record)},
                {"joint", json_of(story.runs.joint.record)},
                {"same_text", story.runs.same_text()},
                {"cross_node_bytes_fell_by", fall},
                {"affinity_kept", mean.kept_on_device},
                {"affinity_kept_by_random_groups", mean.random_groups},
                {"layers", json_of(figures)},
                {"html", flags.html}});
    return {};
  }
  print("\n" + report::terminal_table(kinds_table(story.kinds)) + "\n" +
        report::terminal_table(table_of(story.plan, figures)) + "\n");
  print(report::terminal_table(result_table(story.runs, story.job)) + footnote(story.job) + "\n\n");
  print(fmt::format("Bytes across nodes fell by {:.1f} % under the same dispatch; the text is {}.\n",
                    fall * 100, story.runs.same_text() ? "the same" : "NOT the same"));
  if (!flags.html.empty()) print(fmt::format("Report: {}\n", flags.html));
  return {};
}

struct Plans {
  Plan grace, joint;
};

// joint within grace's own slots, searched briefly: a second or two.
Result<Plans> plans_of(const Trace& trace, const Job& job, ThreadPool& pool) {
  Plans plans;
  PlanOptions options;
  options.seed = job.seed;
  plans.grace = GRACE_TRY(make_plan(trace, job.cluster, options, pool)).plan;
  options.strategy = "joint-slow";
  options.slots = fullest_devices(plans.grace);
  options.effort = 0.2;
  plans.joint = GRACE_TRY(make_plan(trace, job.cluster, options, pool)).plan;
  return plans;
}

Result<int> demo(const Flags& flags, const Context& context) {
  if (!std::filesystem::exists(std::filesystem::path(flags.engine.model) / "config.json") ||
      !std::filesystem::exists(std::filesystem::path(flags.engine.model) / "model.safetensors"))
    return invalid_input(
        fmt::format("{}: the demo model is not there (model.safetensors); name another with --model",
                    flags.engine.model));
  if (flags.prompts < 1 || flags.max_new_tokens < 1 || flags.profile_tokens < 2)
    return invalid_input(
        "demo: --num-prompts and --max-new-tokens are at least 1, --profile-tokens at least 2");
  const Job job = GRACE_TRY(prepare_job(flags.engine));
  const Tokenizer tokenizer = GRACE_TRY(load_tokenizer(job.model));
  Ranks ranks = GRACE_TRY(Ranks::make(job, context));
  const bool speaks = ranks.speaks();
  Stages stages(flags.json || !speaks);
  ThreadPool pool(GRACE_TRY(threads_for(0)));
  std::vector<Kind> kinds = GRACE_TRY(kinds_of(job, tokenizer, flags.profile_tokens));
  const Lists prompts = GRACE_TRY(prompts_of(job, tokenizer, flags.prompts));
  stages.done(fmt::format("model {}: {} MoE layers of {} experts, top {}; {} kinds of text", job.config.name,
                          job.config.moe_layers.size(), job.config.num_experts, job.config.experts_per_token,
                          kinds.size()));
  const Trace trace = GRACE_TRY(profile_all(ranks, job, kinds));
  count_kinds(trace, kinds, pool);
  stages.done(fmt::format("profiled {} tokens in {} sequences", trace.num_tokens(), trace.num_sequences()));
  const Plans plans = GRACE_TRY(plans_of(trace, job, pool));
  stages.done(
      fmt::format("planned {} devices in {} nodes", job.cluster.num_devices(), job.cluster.num_nodes()));
  GenerateOptions generate;
  generate.max_new_tokens = flags.max_new_tokens;
  generate.ignore_eos = true;
  Runs runs;
  for (const auto& [plan, run] : {std::pair{&job.plan, &runs.vanilla}, std::pair{&plans.grace, &runs.grace},
                                  std::pair{&plans.joint, &runs.joint}}) {
    Progress progress(plan->strategy);
    std::function<void(std::int64_t, std::int64_t)> report;
    if (speaks) report = [&](std::int64_t done, std::int64_t total) { progress(done, total); };
    *run = GRACE_TRY(run_recorded(
        ranks, job, {.plan = *plan, .prompts = prompts, .generate = generate, .progress = report}));
    stages.done(fmt::format("ran {} prompts x {} new tokens over {} ranks: {}", prompts.size(),
                            flags.max_new_tokens, job.cluster.num_devices(), plan->strategy));
  }
  if (speaks) GRACE_TRY(tell(flags, {job, plans.grace, trace, kinds, runs}));
  return runs.same_text() ? 0 : 1;
}

}  // namespace

void add_demo(CLI::App& app, Context& context) {
  auto flags = std::make_shared<Flags>();
  flags->engine.model = GRACE_SOURCE_DIR "/models/demo";
  flags->engine.cluster = "2x2";
  CLI::App* command = app.add_subcommand(
      "demo", "Profiles, plans and runs the small model in the box; a table and a page at the end.");
  command->add_option("--model", flags->engine.model, "another model folder with heldout/ texts");
  command->add_option("--cluster", flags->engine.cluster, "NODESxDEVICES (default 2x2)");
  command->add_option("--transport", flags->engine.transport, "in_process (default) or mpi");
  add_deadline(*command, flags->engine.deadline_s);
  command->add_option("--dispatch", flags->engine.dispatch, "flat or per_device (default)");
  command->add_option("--threads", flags->engine.threads, "threads of each rank (default 1)");
  command->add_option("--seed", flags->engine.seed, "seed of everything random (default 0)");
  command->add_option("--num-prompts", flags->prompts, "prompts to run (default 36)");
  command->add_option("--max-new-tokens", flags->max_new_tokens, "new tokens of each (default 64)");
  command->add_option("--profile-tokens", flags->profile_tokens,
                      "tokens of each kind to profile on at most (default 4096)");
  command->add_option("--html", flags->html, "the page (default out/demo.html)");
  command->add_flag("--json", flags->json, "one JSON value");
  command->footer("Example:\n  grace demo --html out/demo.html");
  command->callback(
      [flags, &context] { context.action = [flags, &context] { return demo(*flags, context); }; });
}

}  // namespace grace::app
