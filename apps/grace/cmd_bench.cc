// grace bench: the published workload, strategies in turn in the same engine.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>

#include "bench_page.h"
#include "context.h"
#include "grace/base/rng.h"
#include "grace/files/mapped_file.h"
#include "grace/planner/budget.h"
#include "grace/planner/planner.h"
#include "grace/report/report.h"
#include "launch.h"
#include "profile.h"
#include "progress.h"
#include "record.h"
#include "shape_option.h"

namespace grace::app {
namespace {

struct Flags {
  EngineFlags engine;
  std::string text, strategies = "vanilla,grace", slots, shape, routing, section, write;
  int layers = 2;
  int batch = 128, prefill = 64, decode = 16, rounds = 3;
  bool json = false;
};

using Lists = std::vector<std::vector<std::int32_t>>;

constexpr const char* kOwnDispatch = "own";

// One column: a plan and how its tokens travel.
struct Contender {
  std::string name;
  Plan plan;
  Dispatch dispatch = Dispatch::kTwoStage;
};

// How a strategy's own engine exchanges: MegaBlocks per expert, Tutel and DeepSpeed padded, vLLM by
// all-gather, Occult per device, the rest in two stages.
Dispatch own_dispatch(std::string_view strategy) {
  if (strategy == "vanilla") return Dispatch::kFlat;
  if (strategy == "padded") return Dispatch::kPadded;
  if (strategy == "allgather") return Dispatch::kAllGather;
  if (strategy == "occult") return Dispatch::kPerDevice;
  return Dispatch::kTwoStage;
}
// Those that stand for another engine's exchange over the default placement.
bool is_default_placement(std::string_view strategy) {
  return strategy == "vanilla" || strategy == "padded" || strategy == "allgather";
}

Status check_flags(const Flags& flags, const ModelConfig& config) {
  const auto in = [](const char* name, int value, int lowest, int highest) -> Status {
    if (value >= lowest && value <= highest) return {};
    return invalid_input(fmt::format("{}: {} is outside [{}, {}]", name, value, lowest, highest));
  };
  GRACE_TRY(in("--batch", flags.batch, 1, 1 << 16));
  GRACE_TRY(in("--prefill", flags.prefill, 1, config.max_positions - 1));
  GRACE_TRY(in("--decode", flags.decode, 1, config.max_positions - flags.prefill));
  GRACE_TRY(in("--rounds", flags.rounds, 1, 1000));
  if (flags.section.empty() != flags.write.empty())
    return invalid_input("bench: --section NAME and --write FILE go together");
  if (!flags.slots.empty() && GRACE_TRY(parse_slots(flags.slots)).size() > 1)
    return invalid_input(fmt::format("--slots: '{}' is several budgets; a run has one", flags.slots));
  return {};
}

// `batch` prompts of `prefill` ids: windows of the text, from its start again when it is too short, or random
// ids.
Result<Lists> prompts_of(const Flags& flags, const ModelConfig& config) {
  Lists prompts;
  if (flags.text.empty()) {
    for (int p = 0; p < flags.batch; ++p) {
      Rng rng = Rng(flags.engine.seed).fork(static_cast<std::uint64_t>(p));
      auto& ids = prompts.emplace_back();
      for (int i = 0; i < flags.prefill; ++i)
        ids.push_back(static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(config.vocab_size))));
    }
    return prompts;
  }
  const Tokenizer tokenizer = GRACE_TRY(load_tokenizer(flags.engine.model));
  const std::vector<std::int32_t> ids = GRACE_TRY(read_and_encode(tokenizer, flags.text));
  for (int p = 0; p < flags.batch; ++p) {
    auto& prompt = prompts.emplace_back();
    for (int i = 0; i < flags.prefill; ++i)
      prompt.push_back(ids[static_cast<std::size_t>(std::int64_t{p} * flags.prefill + i) % ids.size()]);
  }
  return prompts;
}

// A trace of the second half of the text's windows; the first are what is measured.
Result<Trace> profile_text(Ranks& ranks, const Job& job, const Flags& flags) {
  const Tokenizer tokenizer = GRACE_TRY(load_tokenizer(flags.engine.model));
  const Lists windows =
      windows_of(GRACE_TRY(read_and_encode(tokenizer, flags.text)), std::min(256, job.config.max_positions));
  const auto half = static_cast<std::ptrdiff_t>(windows.size() / 2);
  const Lists sequences(windows.begin() + half, windows.end());
  ProfileOptions options;
  options.source = flags.text;
  return profile_on_ranks(ranks, job, sequences, options);
}

// The routing that --routing names, its even sequences to serve and its odd ones to plan from.
struct Routing {
  Trace served, learned;
};

Result<Routing> read_routing(const Flags& flags, const ModelShape& shape) {
  const Trace whole = GRACE_TRY(read_trace(flags.routing));
  if (whole.num_experts != shape.num_experts || whole.experts_per_token != shape.experts_per_token)
    return invalid_input(fmt::format("{}: routing of {} experts, {} a token; shape {} has {}, {} a token",
                                     flags.routing, whole.num_experts, whole.experts_per_token, shape.name,
                                     shape.num_experts, shape.experts_per_token));
  if (flags.layers < 1 || flags.layers > whole.num_moe_layers())
    return invalid_input(
        fmt::format("--layers: {} is outside [1, {}]", flags.layers, whole.num_moe_layers()));
  const Trace trace = first_layers(whole, flags.layers);
  std::vector<int> of_half[2];
  for (int s = 0; s < trace.num_sequences(); ++s)
    if (trace.sequence_offsets[static_cast<std::size_t>(s) + 1] >
        trace.sequence_offsets[static_cast<std::size_t>(s)])
      of_half[s % 2].push_back(s);
  if (of_half[0].empty() || of_half[1].empty())
    return invalid_input(
        fmt::format("{}: needs two sequences with tokens, one to serve and one to plan from", flags.routing));
  return Routing{select_sequences(trace, of_half[0]), select_sequences(trace, of_half[1])};
}

// A job without a model folder: layers of the shape with random weights, gated by the trace.
Result<Job> replay_job(const Flags& flags, Trace& learned) {
  if (!flags.engine.model.empty() || !flags.text.empty() || !flags.engine.plan.empty())
    return invalid_input("bench: --shape and --routing go without a model, --text and --plan");
  if (flags.shape.empty() || flags.routing.empty())
    return invalid_input("bench: --shape NAME and --routing TRACE go together");
  Job job;
  GRACE_TRY(prepare_ranks(flags.engine, job));
  const ModelShape shape = GRACE_TRY(shape_for(flags.shape, ""));
  Routing routing = GRACE_TRY(read_routing(flags, shape));
  learned = std::move(routing.learned);
  job.replay = std::make_shared<const ReplaySource>(
      ReplaySource{std::move(routing.served), shape.hidden, shape.expert_ffn, flags.engine.seed});
  job.config = config_of(*job.replay);
  job.config.name = fmt::format("{} ({} of its MoE layers, random weights)", shape.name, flags.layers);
  return job;
}

// The batch is the prefill, which is the most that runs together; everything is done in f32 here.
Result<PlanOptions> plan_options(const Flags& flags, const Job& job, const Trace& trace,
                                 const std::string& strategy, ThreadPool& pool) {
  PlanOptions options;
  options.strategy = strategy;
  options.seed = flags.engine.seed;
  options.objective.sizes = {.hidden = job.config.hidden_size,
                             .expert_ffn = job.config.expert_ffn_size,
                             .bytes_per_value = 4,
                             .bytes_per_weight = 4};
  options.objective.batch = std::int64_t{flags.batch} * flags.prefill;
  if (flags.slots.empty()) return options;
  const SlotsSpec spec = GRACE_TRY(parse_slots(flags.slots)).front();
  options.slots = GRACE_TRY(slots_for(spec, trace, job.cluster, options.seed, pool));
  return options;
}

// The plan of each strategy: the default placement needs none, --plan serves the strategy it was made by, the
// rest are planned from the text.
Result<std::vector<Contender>> contenders_of(Ranks& ranks, const Job& job, const Flags& flags,
                                             std::optional<Trace> trace) {
  std::vector<Contender> contenders;
  for (const std::string& name : split_at_commas(flags.strategies)) {
    Contender& contender = contenders.emplace_back();
    contender.name = name;
    contender.dispatch = flags.engine.dispatch == kOwnDispatch ? own_dispatch(name) : job.dispatch;
    if (is_default_placement(name)) {
      contender.plan =
          vanilla_plan(job.config.name, job.config.num_experts, job.config.moe_layers, job.cluster);
    } else if (!flags.engine.plan.empty() && job.plan.strategy == name) {
      contender.plan = job.plan;
    } else if (flags.text.empty() && !trace) {
      return invalid_input(
          fmt::format("bench: strategy {} needs --plan made by it, or --text to plan from", name));
    } else {
      if (!trace) trace = GRACE_TRY(profile_text(ranks, job, flags));
      ThreadPool pool(job.threads);
      const PlanOptions options = GRACE_TRY(plan_options(flags, job, *trace, name, pool));
      contender.plan = GRACE_TRY(make_plan(*trace, job.cluster, options, pool)).plan;
    }
  }
  if (contenders.empty()) return invalid_input("--strategies: none is named");
  return contenders;
}

struct Round {
  RunSummary sum;
  double prefill_s = 0, decode_s = 0, tokens_per_s = 0;
};
struct Measured {
  std::string strategy;
  Dispatch dispatch;
  std::vector<Round> rounds;
  std::int64_t differing =
      0;  // prompts whose text is not the first strategy's first round's; the most of any round
};

template <typename Get>
std::vector<double> sorted(const Measured& measured, const Get& get) {
  std::vector<double> values;
  for (const Round& round : measured.rounds) values.push_back(get(round));
  std::ranges::sort(values);
  return values;
}

Result<std::vector<Measured>> measure(Ranks& ranks, const Job& job, const Flags& flags,
                                      const std::vector<Contender>& contenders, const Lists& prompts) {
  GenerateOptions options;
  options.max_new_tokens = flags.decode;
  options.ignore_eos = true;
  options.seed = flags.engine.seed;
  std::vector<Measured> all;
  for (const Contender& contender : contenders) all.push_back({contender.name, contender.dispatch, {}, 0});
  Lists expected;
  Progress progress("bench");
  const auto total = static_cast<std::int64_t>(contenders.size()) * flags.rounds;
  for (int round = 0; round < flags.rounds; ++round)
    for (std::size_t p = 0; p < contenders.size(); ++p) {
      Job of_contender = job;
      of_contender.dispatch = contenders[p].dispatch;
      const RecordedRun run =
          GRACE_TRY(run_recorded(ranks, of_contender, contenders[p].plan, prompts, options, {}));
      if (expected.empty()) expected = run.outputs;
      std::int64_t differing = 0;
      for (std::size_t i = 0; i < expected.size(); ++i) differing += run.outputs[i] == expected[i] ? 0 : 1;
      all[p].differing = std::max(all[p].differing, differing);
      const double wall = run.record.wall_s();
      all[p].rounds.push_back({summarise(run.record), run.record.prefill_s, run.record.decode_s,
                               wall > 0 ? static_cast<double>(run.record.new_tokens) / wall : 0});
      if (ranks.speaks())
        progress(round * static_cast<std::int64_t>(contenders.size()) + static_cast<std::int64_t>(p) + 1,
                 total);
    }
  return all;
}

struct Figure {
  const char* name;
  const char* unit;
  double scale;
  double (*get)(const Round&);
};
constexpr Figure kFigures[] = {
    {"all_to_all", "ms", 1e3, [](const Round& r) { return r.sum.all_to_all_s; }},
    {"cross_node_bytes", "MB", 1e-6,
     [](const Round& r) { return static_cast<double>(r.sum.cross_node_bytes()); }},
    {"intra_node_bytes", "MB", 1e-6,
     [](const Round& r) { return static_cast<double>(r.sum.intra_node_bytes()); }},
    {"idle", "ms", 1e3, [](const Round& r) { return r.sum.idle_s; }},
    {"load_deviation", "%", 100, [](const Round& r) { return r.sum.load_deviation; }},
    {"moe_layers", "ms", 1e3, [](const Round& r) { return r.sum.moe_s; }},
    {"prefill", "ms", 1e3, [](const Round& r) { return r.prefill_s; }},
    {"decode", "ms", 1e3, [](const Round& r) { return r.decode_s; }},
    {"tokens_per_s", "1/s", 1, [](const Round& r) { return r.tokens_per_s; }},
};

report::Table table_of(const std::vector<Measured>& all) {
  report::Table table;
  table.columns = {""};
  for (const Measured& one : all) table.columns.push_back(one.strategy);
  auto& exchanges = table.rows.emplace_back(1, "dispatch");
  for (const Measured& one : all) exchanges.emplace_back(name_of(one.dispatch));
  for (const Figure& figure : kFigures) {
    std::string name = figure.name;
    std::ranges::replace(name, '_', ' ');
    auto& row = table.rows.emplace_back(1, fmt::format("{} [{}]", name, figure.unit));
    for (const Measured& one : all) {
      const std::vector<double> values = sorted(one, figure.get);
      const double middle = values[values.size() / 2] * figure.scale;
      row.push_back(values.front() == values.back()
                        ? fmt::format("{:.2f}", middle)
                        : fmt::format("{:.1f} ({:.1f}..{:.1f})", middle, values.front() * figure.scale,
                                      values.back() * figure.scale));
    }
  }
  auto& row = table.rows.emplace_back(1, "same text");
  for (const Measured& one : all)
    row.push_back(one.differing == 0 ? "yes" : fmt::format("{} prompts differ", one.differing));
  return table;
}

std::string options_line(const Flags& flags, const Job& job) {
  return fmt::format(
      "{}; cluster {}, {}, {} results, {} thread(s) a rank; {} prompts of {} tokens ({}), {} new; {} rounds, "
      "interleaved, median (lowest..highest);{} seed {}.",
      job.config.name, job.cluster.name, job.mpi ? "mpi" : "in_process", name_of(job.combine), job.threads,
      flags.batch, flags.prefill,
      job.replay != nullptr ? "the trace's routing"
      : flags.text.empty()  ? "random ids"
                            : "text",
      flags.decode, flags.rounds, flags.slots.empty() ? "" : fmt::format(" slots {};", flags.slots),
      flags.engine.seed);
}

Json json_of(const std::vector<Measured>& all, const Flags& flags, const Job& job) {
  Json list = Json::array();
  bool same = true;
  for (const Measured& one : all) {
    Json entry = {{"strategy", one.strategy},
                  {"dispatch", name_of(one.dispatch)},
                  {"same_text", one.differing == 0},
                  {"differing_prompts", one.differing}};
    same = same && one.differing == 0;
    for (const Figure& figure : kFigures) {
      const std::vector<double> values = sorted(one, figure.get);
      entry[figure.name] = {{"unit", figure.unit},
                            {"median", values[values.size() / 2] * figure.scale},
                            {"lowest", values.front() * figure.scale},
                            {"highest", values.back() * figure.scale}};
    }
    list.push_back(std::move(entry));
  }
  return {{"machine", machine_name()},
          {"options", options_line(flags, job)},
          {"same_text", same},
          {"strategies", list}};
}

// The words that were typed, so that a reader can type them again.
std::string command_line(const Context& context) {
  std::string line = "./run grace";
  for (int i = 1; i < context.argc; ++i) line += fmt::format(" {}", context.argv[i]);
  return line;
}

Status write_section(const Flags& flags, const Job& job, const Context& context,
                     const std::vector<Measured>& all) {
  std::string page;
  if (std::filesystem::exists(flags.write)) page = GRACE_TRY(read_text(flags.write));
  const std::string shared =
      job.cluster.num_devices() > static_cast<int>(std::thread::hardware_concurrency())
          ? "\nThe ranks share cores: times are no speed figures; bytes and loads are exact.\n"
          : "";
  const std::string body =
      fmt::format("## {}\n\n```\n{}\n```\n\n{}\nMachine: {}.\n{}\n{}", flags.section, command_line(context),
                  options_line(flags, job), machine_name(), shared, report::markdown_table(table_of(all)));
  return write_text_atomically(flags.write, with_section(std::move(page), flags.section, body));
}

Result<int> bench(const Flags& flags, const Context& context) {
  Flags used = flags;
  if (used.engine.dispatch == kOwnDispatch) used.engine.dispatch = name_of(Dispatch::kTwoStage);
  const bool replays = !flags.shape.empty() || !flags.routing.empty();
  if (!replays && flags.engine.model.empty())
    return invalid_input("bench: needs a model folder, or --shape NAME and --routing TRACE");
  Trace learned;
  const Job job = GRACE_TRY(replays ? replay_job(used, learned) : prepare_job(used.engine));
  GRACE_TRY(check_flags(flags, job.config));
  const Lists prompts = GRACE_TRY(prompts_of(flags, job.config));
  Ranks ranks = GRACE_TRY(Ranks::make(job, context));
  const std::vector<Contender> contenders =
      GRACE_TRY(contenders_of(ranks, job, flags, replays ? std::optional(std::move(learned)) : std::nullopt));
  const std::vector<Measured> all = GRACE_TRY(measure(ranks, job, flags, contenders, prompts));
  if (!ranks.speaks()) return 0;
  if (!flags.write.empty()) GRACE_TRY(write_section(flags, job, context, all));
  if (flags.json)
    print_json(json_of(all, flags, job));
  else
    print(report::terminal_table(table_of(all)) + options_line(flags, job) + "\n");
  // Where results are reduced the last bits are the plan's, and two tokens that are nearly alike may change
  // places.
  const bool same = std::ranges::all_of(all, [](const Measured& one) { return one.differing == 0; });
  return same || job.combine == Combine::kReduced ? 0 : 1;
}

}  // namespace

void add_bench(CLI::App& app, Context& context) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "bench", "The published workload: a batch of equal prompts, strategies in turn in the same engine.");
  flags->engine.dispatch = kOwnDispatch;
  add_engine_flags(*command, flags->engine);
  command->get_option("MODEL")->required(false);
  command->get_option("--dispatch")
      ->description(
          "how all of them exchange: flat, per_device, two_stage, padded or allgather (default: each as its "
          "own engine does)");
  command->add_option(
      "--strategies", flags->strategies,
      "which to compare, of those of grace plan, and padded and allgather, the default placement under the "
      "exchange of Tutel and of vLLM (default vanilla,grace)");
  command->add_option(
      "--text", flags->text,
      "prompts are windows of this text, and plans are made from its second half (default: random ids)");
  command->add_option("--slots", flags->slots,
                      "copies a device may hold in a layer, for eplb and joint: a number, or grace for what "
                      "grace's own fullest device holds there (default: one more than it must)");
  command->add_option(
      "--shape", flags->shape,
      "in place of a model: layers of this shape with random weights, a name or a config.json");
  command->add_option(
      "--routing", flags->routing,
      "with --shape: the trace that the gates take their choices from; plans are made from every "
      "second sequence, the others are served");
  command->add_option("--layers", flags->layers, "with --shape: MoE layers, the trace's first (default 2)");
  command->add_option("--batch", flags->batch, "prompts (default 128)");
  command->add_option("--prefill", flags->prefill, "tokens of a prompt (default 64)");
  command->add_option("--decode", flags->decode, "new tokens of each (default 16)");
  command->add_option("--rounds", flags->rounds, "how often each strategy is run (default 3)");
  command->add_option("--section", flags->section, "name of the section that --write replaces");
  command->add_option("--write", flags->write, "a Markdown page, such as docs/benchmarks.md");
  command->add_flag("--json", flags->json, "one JSON value");
  command->footer(
      "Example:\n  grace bench models/demo --text models/demo/heldout/judge/en.txt --cluster 2x2 "
      "--strategies vanilla,padded,allgather,grace,joint\n"
      "  grace bench --shape deepseek-v2-lite --routing deepseek.trace --cluster 2x2 --strategies "
      "vanilla,grace,joint --slots grace");
  command->callback(
      [flags, &context] { context.action = [flags, &context] { return bench(*flags, context); }; });
}

}  // namespace grace::app
