// grace report: one self-contained page on which placement to use, and what it does to a trace.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>

#include "bench_page.h"
#include "compare_views.h"
#include "context.h"
#include "grace/files/mapped_file.h"
#include "grace/sizing/requests.h"
#include "load_commands.h"
#include "options.h"
#include "page.h"
#include "progress.h"
#include "report_sections.h"

namespace grace::app {
namespace {

struct Flags {
  std::vector<std::string> traces;
  std::string cluster, plan, run, html, timeline, dispatch = "per_device";
  CompareRequest request;
  int threads = 0;
  bool json = false;
};

// What was asked, read.
struct Question {
  const Flags& flags;
  const Context& context;
  ThreadPool& pool;
  std::vector<Trace> traces;
  std::vector<std::string> names;  // of the traces
  Trace trace;                     // all of them
  Dispatch dispatch = Dispatch::kPerDevice;
  std::optional<Plan> plan;  // the one given
  Cluster cluster;
  CompareOptions options;  // where a cluster was given
  bool compares() const { return !flags.cluster.empty(); }
};

Status check_flags(const Flags& flags) {
  if (flags.cluster.empty() && flags.plan.empty())
    return invalid_input("report: --cluster compares strategies, --plan shows a plan; one of them is needed");
  if (!flags.timeline.empty() && flags.run.empty()) return invalid_input("--timeline needs --run");
  return {};
}

Result<Question> question_of(const Flags& flags, const Context& context, ThreadPool& pool) {
  Question question{flags, context, pool, {}, {}, {}, {}, {}, {}, {}};
  for (const std::string& path : flags.traces) {
    question.traces.push_back(GRACE_TRY(read_trace(path)));
    question.names.push_back(std::filesystem::path(path).stem().string());
  }
  question.trace =
      question.traces.size() == 1 ? question.traces.front() : GRACE_TRY(join_traces(question.traces));
  question.dispatch = GRACE_TRY(parse_dispatch(flags.dispatch));
  if (!flags.plan.empty()) {
    question.plan = GRACE_TRY(read_plan(flags.plan));
    GRACE_TRY(check_fits(*question.plan, question.trace.num_experts, question.trace.decoder_layers,
                         flags.traces.front()));
  }
  question.cluster =
      question.compares() ? GRACE_TRY(parse_cluster(flags.cluster)) : GRACE_TRY(cluster_of(*question.plan));
  if (question.compares()) question.options = GRACE_TRY(compare_options(flags.request, question.trace));
  if (question.plan) {
    const std::vector<std::string> faults = violations(*question.plan, question.cluster);
    if (!faults.empty()) return invalid_input(fmt::format("{}: {}", flags.plan, faults.front()));
  }
  return question;
}

std::string summary_of(const Question& question) {
  const Trace& trace = question.trace;
  const std::string devices =
      fmt::format("{} devices in {} nodes", question.cluster.num_devices(), question.cluster.num_nodes());
  std::string text =
      fmt::format("{} tokens of {} in {} sequences; {} MoE layers of {} experts, {} a token; {}{}.",
                  trace.num_tokens(), trace.source.empty() ? trace.model : trace.source,
                  trace.num_sequences(), trace.num_moe_layers(), trace.num_experts, trace.experts_per_token,
                  question.compares() ? fmt::format("cluster {}, ", question.cluster.name) : "", devices);
  if (question.compares())
    text += fmt::format(
        " {} strategies, {} splits by sequence: half of the sequences plan, the other half judge, in batches "
        "of "
        "{} tokens.",
        question.options.contenders.size(), question.options.splits, question.options.batch);
  return text;
}

// The row whose plan is drawn: what is recommended, or where that is the default placement the best of the
// others.
const CompareRow& drawn_row(const Comparison& comparison, const std::vector<Contender>& contenders) {
  const auto moves = [&](const CompareRow& row) {
    return std::ranges::find(contenders, row.name, &Contender::name)->strategy != "vanilla";
  };
  const CompareRow* drawn = &comparison.rows[comparison.recommended];
  if (moves(*drawn)) return *drawn;
  const CompareRow* best = nullptr;
  for (const CompareRow& row : comparison.rows)
    if (moves(row) && !row.lossy &&
        (best == nullptr ||
         row.figures.at(comparison.measure).mean < best->figures.at(comparison.measure).mean))
      best = &row;
  return best != nullptr ? *best : *drawn;
}

SlotsSpec slots_of(const CompareRow& row, const CompareOptions& options) {
  const auto spec = std::ranges::find(options.slots, row.slots, &SlotsSpec::name);
  return spec == options.slots.end() ? options.slots.front() : *spec;
}

Result<Plan> plan_of(const CompareRow& row, const Question& question) {
  const CompareOptions& asked = question.options;
  const Contender& contender = *std::ranges::find(asked.contenders, row.name, &Contender::name);
  PlanOptions options;
  options.strategy = contender.strategy;
  options.r = contender.r;
  options.seed = asked.seed;
  options.effort = asked.effort;
  options.objective.sizes = asked.sizes;
  options.objective.batch = asked.batch;
  if (contender.takes_slots)
    options.slots = GRACE_TRY(
        slots_for(slots_of(row, asked), question.trace, question.cluster, asked.seed, question.pool));
  PlanResult made = GRACE_TRY(make_plan(question.trace, question.cluster, options, question.pool));
  if (!contender.routing.empty()) made.plan.routing = contender.routing;
  return std::move(made.plan);
}

// Plans of the drawn row's strategy, and of grace beside it, carried from one part to another.
Status add_drift(report::Page& page, Json& json, const Question& question, const CompareRow& drawn) {
  const DriftParts parts = parts_of(question.traces, question.names);
  CompareOptions options = question.options;
  options.slots = {slots_of(drawn, options)};
  std::erase_if(options.contenders,
                [&](const Contender& c) { return c.name != drawn.name && c.name != "grace"; });
  if (parts.traces.empty()) return {};
  Progress progress("drift");
  options.progress = [&](std::int64_t done, std::int64_t total) { progress(done, total); };
  const std::vector<Transfer> transfers =
      GRACE_TRY(transfer(parts.traces, question.cluster, options, question.pool));
  page.sections.push_back(drift_section(transfers, parts, question.traces.size() == 1,
                                        options.sizes.known() ? "layer time" : "judge-slow"));
  json["drift"] = Json::array();
  for (const Transfer& one : transfers) json["drift"].push_back(json_of(one, parts.names));
  return {};
}

Result<Comparison> compared(const Question& question) {
  CompareOptions options = question.options;
  Progress progress("compare");
  options.progress = [&](std::int64_t done, std::int64_t total) { progress(done, total); };
  return compare(question.trace, question.cluster, options, question.pool);
}

Status add_knee(report::Page& page, Json& json, const Question& question) {
  PlanOptions options;
  options.seed = question.flags.request.seed;
  const PlanResult made = GRACE_TRY(make_plan(question.trace, question.cluster, options, question.pool));
  if (made.knee.empty()) return {};
  page.sections.push_back(knee_section(made.knee));
  json["knee"] = json_of(std::span<const KneePoint>(made.knee));
  return {};
}

// What a plan does where no comparison was asked for.
std::string verdict_of(const Plan& plan, const PlanEffect& effect, const Question& question) {
  const double before = vectors_across(effect.before, question.cluster, true),
               after = vectors_across(effect.after, question.cluster, true);
  const auto hash = plan.provenance.find("trace_hash");
  const bool own = hash != plan.provenance.end() && hash->second == hash_of(question.trace);
  return fmt::format(
      "{} sends {:.1f} % {} vectors across nodes than the default placement, and keeps {:.1f} % of the "
      "affinity "
      "on a device ({:.1f} % by default){}.",
      plan.strategy, before > 0 ? 100 * std::abs(after / before - 1) : 0, after <= before ? "fewer" : "more",
      100 * mean_of(effect.figures).kept_on_device, 100 * mean_of(effect.default_figures).kept_on_device,
      own ? ", on the very tokens it was planned from" : "");
}

report::Facts provenance_of(const Question& question, const Plan& plan) {
  report::Facts facts{"", {{"program", "grace " GRACE_VERSION}, {"machine", machine_name()}}};
  std::string line = "grace";
  for (int i = 1; i < question.context.argc; ++i) line += fmt::format(" {}", question.context.argv[i]);
  facts.facts.emplace_back("command", line);
  for (std::size_t i = 0; i < question.traces.size(); ++i)
    facts.facts.emplace_back(
        "trace " + question.names[i],
        fmt::format("{}, hash {}", question.flags.traces[i], hash_of(question.traces[i])));
  facts.facts.emplace_back("model", question.trace.model);
  facts.facts.emplace_back("dispatch of traffic", question.flags.dispatch);
  facts.facts.emplace_back("seed", std::to_string(question.flags.request.seed));
  if (question.compares()) {
    std::string names;
    for (const Contender& one : question.options.contenders) names += (names.empty() ? "" : ", ") + one.name;
    facts.facts.emplace_back("strategies", names);
    facts.facts.emplace_back(
        "splits, batch, effort",
        fmt::format("{}, {}, {}", question.options.splits, question.options.batch, question.options.effort));
  }
  facts.facts.emplace_back("plan drawn", fmt::format("{}, routed by {}", plan.strategy, plan.routing));
  for (const auto& [name, value] : plan.provenance) {
    std::string words = "plan: " + name;
    std::ranges::replace(words, '_', ' ');
    facts.facts.emplace_back(words, value);
  }
  return facts;
}

Json facts_json(const report::Facts& facts) {
  Json json = Json::object();
  for (const auto& [name, value] : facts.facts) json[name] = value;
  return json;
}

// The sections of the comparison, and the plan that the others draw.
Result<Plan> add_answer(report::Page& page, Json& json, const Question& question) {
  const Comparison comparison = GRACE_TRY(compared(question));
  add_comparison(page, comparison);
  const Json numbers = json_of(comparison);
  for (const auto& [name, value] : numbers.items()) json[name] = value;
  const CompareRow& drawn = drawn_row(comparison, question.options.contenders);
  GRACE_TRY(add_knee(page, json, question));
  GRACE_TRY(add_drift(page, json, question, drawn));
  if (question.plan) return *question.plan;
  return plan_of(drawn, question);
}

Result<int> report_loads_command(const Flags& flags, const Context& context, ThreadPool& pool) {
  if (flags.traces.size() > 1)
    return invalid_input(
        "--trace: a load profile is shown alone; what a plan from one costs another needs tokens");
  if (!flags.run.empty()) return invalid_input("--run: is shown beside the trace's tokens, not beside loads");
  const LoadProfile loads = GRACE_TRY(read_load_profile(flags.traces.front()));
  LoadsReport asked{
      flags.traces.front(), flags.html,         {},        !flags.cluster.empty(), flags.request.strategies,
      flags.request.slots,  flags.request.seed, flags.json};
  if (!flags.plan.empty()) asked.plan = GRACE_TRY(read_plan(flags.plan));
  const Cluster cluster =
      asked.compares ? GRACE_TRY(parse_cluster(flags.cluster)) : GRACE_TRY(cluster_of(*asked.plan));
  if (asked.plan) {
    const std::vector<std::string> faults = violations(*asked.plan, cluster);
    if (!faults.empty()) return invalid_input(fmt::format("{}: {}", flags.plan, faults.front()));
  }
  return report_from_loads(loads, cluster, asked, context, pool);
}

Result<int> report_command(const Flags& flags, const Context& context) {
  GRACE_TRY(check_flags(flags));
  ThreadPool pool(GRACE_TRY(threads_for(flags.threads)));
  if (std::ranges::any_of(flags.traces, is_load_profile)) return report_loads_command(flags, context, pool);
  const Question question = GRACE_TRY(question_of(flags, context, pool));
  report::Page page;
  Json json = {{"html", flags.html}};
  page.summary = summary_of(question);
  const Plan plan = question.compares() ? GRACE_TRY(add_answer(page, json, question)) : *question.plan;
  page.title = question.compares()
                   ? fmt::format("Which placement for {} on {}", question.trace.model, question.cluster.name)
                   : fmt::format("{} for {}", plan.strategy, plan.model);
  const std::vector<LayerStats> stats = count_layers(question.trace, pool);
  const PlanEffect effect = GRACE_TRY(effect_of(question.trace, plan, question.cluster, question.dispatch,
                                                stats, figures_of(plan, stats, flags.request.seed)));
  if (!question.compares()) {
    page.verdict = verdict_of(plan, effect, question);
    GRACE_TRY(add_knee(page, json, question));
  }
  add_plan_sections(page, plan, question.cluster, effect, stats);
  json["plan"] = json_of(plan, effect, stats);
  if (!flags.run.empty()) {
    const RunRecord record = GRACE_TRY(read_record(flags.run));
    page.sections.push_back(run_section(record));
    json["run"] = run_json(record);
    if (!flags.timeline.empty())
      GRACE_TRY(write_text_atomically(flags.timeline, report::chrome_trace(layer_timeline(record, 0, 0))));
  }
  const report::Facts provenance = provenance_of(question, plan);
  page.sections.push_back({"How this page was made", "", {provenance}});
  json["provenance"] = facts_json(provenance);
  GRACE_TRY(write_text_atomically(flags.html, report::html(page)));
  if (flags.json)
    print_json(json);
  else
    print(page.verdict + fmt::format("\n{}: written\n", flags.html));
  return 0;
}

void add_options(CLI::App& command, Flags& flags) {
  command
      .add_option("--trace", flags.traces,
                  "a trace; several: also what a plan from one costs another; or a load profile")
      ->required();
  command.add_option("--cluster", flags.cluster,
                     "compare strategies on it: NODESxDEVICES, a preset or a cluster file");
  command.add_option("--plan", flags.plan,
                     "draw this plan (default: the one that the comparison recommends)");
  command.add_option("--html", flags.html, "the page")->required();
  command.add_option("--strategies", flags.request.strategies, "which (default: as compare)");
  command.add_option("--slots", flags.request.slots,
                     "budgets, as compare takes them; several draw what memory buys");
  command.add_option("--run", flags.run, "a run record (grace run --record)");
  command.add_option("--timeline", flags.timeline, "also write the timeline for Perfetto (needs --run)");
  command.add_option(
      "--dispatch", flags.dispatch,
      "flat, per_device (default), two_stage, padded or allgather: what traffic is counted for");
  command.add_option("--splits", flags.request.splits, "ways to hold half of the sequences out (default 5)");
  command.add_option("--batch", flags.request.batch,
                     "tokens that run together, over all devices (default 2048)");
  command.add_option("--shape", flags.request.shape,
                     "the model's sizes: a known name or a config.json (default: by the trace's model)");
  command.add_option("--effort", flags.request.effort,
                     "of joint's search, relative to the default (default 1)");
  command.add_option("--seed", flags.request.seed, "seed of everything random (default 0)");
  command.add_option("--threads", flags.threads, "threads (default: all cores)");
  command.add_flag("--json", flags.json, "every number of the page as one JSON value");
}

}  // namespace

void add_report(CLI::App& app, Context& context) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "report",
      "One self-contained HTML page: which placement, why, and what it does to affinity, loads and traffic.");
  add_options(*command, *flags);
  command->footer(
      "Examples:\n  grace report --trace out/en.trace --cluster 2x4 --slots 17,18,20 --html out/report.html\n"
      "  grace report --trace out/en.trace --plan out/plan.json --html out/report.html");
  command->callback(
      [flags, &context] { context.action = [flags, &context] { return report_command(*flags, context); }; });
}

}  // namespace grace::app
