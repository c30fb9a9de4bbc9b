// grace compare: every strategy side by side on held-out tokens, and in one sentence which to use.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "compare_views.h"
#include "context.h"
#include "grace/base/commas.h"
#include "grace/sizing/requests.h"
#include "grace/sizing/sizes.h"
#include "load_commands.h"
#include "options.h"
#include "output.h"
#include "progress.h"

namespace grace::app {
namespace {

struct Flags {
  std::vector<std::string> traces;
  std::string cluster;
  CompareRequest request;
  int threads = 0;
  OutputFlags output;
};

std::string setting(const Trace& trace, const Cluster& cluster, const CompareOptions& options) {
  return fmt::format(
      "{}: {} tokens in {} sequences, {} MoE layers of {} experts, {} a token; cluster {}, batches of {} "
      "tokens; {} splits by sequence, half "
      "of the sequences judge, mean ± sample deviation over the splits; seed {}, effort {}.",
      trace.source.empty() ? trace.model : trace.source, trace.num_tokens(), trace.num_sequences(),
      trace.num_moe_layers(), trace.num_experts, trace.experts_per_token, cluster.name, options.batch,
      options.splits, options.seed, options.effort);
}

Json options_json(const Flags& flags, const CompareOptions& options, const Cluster& cluster) {
  Json slots = Json::array();
  for (const SlotsSpec& spec : options.slots) slots.push_back(spec.name());
  return {{"traces", flags.traces}, {"cluster", cluster.name},  {"slots", slots}, {"splits", options.splits},
          {"batch", options.batch}, {"effort", options.effort}, {"r", 0.15}};
}

Result<Output> compare_one(const Flags& flags, const Trace& trace, const Cluster& cluster, ThreadPool& pool) {
  CompareOptions options = GRACE_TRY(compare_options(flags.request, trace));
  Result<Comparison> compared = [&] {
    Progress progress("compare");
    options.progress = [&](std::int64_t done, std::int64_t total) { progress(done, total); };
    return compare(trace, cluster, options, pool);
  }();
  const Comparison comparison = GRACE_TRY(std::move(compared));
  Output output;
  output.blocks.push_back({table_of(comparison, ""), {}});
  if (report::Table bounds = certificates_of(comparison); !bounds.rows.empty())
    output.blocks.push_back({std::move(bounds), {}});
  output.notes = {setting(trace, cluster, options), comparison.recommendation};
  if (std::ranges::any_of(options.contenders, [](const Contender& c) { return c.strategy == "c2r"; }))
    output.notes.push_back(
        "c2r is lossy: its gate chooses other experts than the model's own, and the text changes; here a "
        "choice "
        "it does not allow counts as the best partner's that is left.");
  for (const CompareRow& row : comparison.rows)
    if (row.second_copies_moved > 0)
      output.notes.push_back(fmt::format(
          "{}{}: EPLB's rule would have put {:.1f} copies a plan beside a copy of the same expert; they went "
          "elsewhere.",
          row.name, row.slots.empty() ? "" : " @" + row.slots, row.second_copies_moved));
  output.page.title = fmt::format("{} on {}: which placement", trace.model, cluster.name);
  output.page.summary = output.notes.front();
  for (std::size_t i = 2; i < output.notes.size(); ++i) output.page.summary += "\n" + output.notes[i];
  add_comparison(output.page, comparison);
  output.page_has_blocks = true;
  output.json = json_of(comparison);
  output.json["seed"] = options.seed;
  output.json["options"] = options_json(flags, options, cluster);
  return output;
}

Result<Output> compare_domains(const Flags& flags, const std::vector<Trace>& traces, const Cluster& cluster,
                               ThreadPool& pool) {
  CompareRequest request = flags.request;
  const LayerSizes sizes = GRACE_TRY(sizes_if_known(request.shape, traces.front()));
  if (request.strategies.empty()) request.strategies = sizes.known() ? "grace,joint" : "grace,joint-slow";
  CompareOptions options = GRACE_TRY(compare_options(request, traces.front()));
  if (options.slots.size() > 1)
    return invalid_input("--slots: one budget, where several traces are compared");
  Result<std::vector<Transfer>> made = [&] {
    Progress progress("compare");
    options.progress = [&](std::int64_t done, std::int64_t total) { progress(done, total); };
    return transfer(traces, cluster, options, pool);
  }();
  const std::vector<Transfer> transfers = GRACE_TRY(std::move(made));
  std::vector<std::string> names;
  for (const std::string& path : flags.traces) names.push_back(std::filesystem::path(path).stem().string());
  const std::string measure = sizes.known() ? "layer time in seconds" : "judge-slow";
  Output output;
  output.notes = {
      fmt::format("{} splits by sequence, half of each trace's sequences judge; cluster {}, batches of {} "
                  "tokens; slots {}; seed {}, effort {}.",
                  options.splits, cluster.name, options.batch, options.slots.front().name(), options.seed,
                  options.effort)};
  output.json = {{"transfer", Json::array()}};
  for (const Transfer& one : transfers) {
    output.blocks.push_back({table_of(one, names, measure), {}});
    output.json["transfer"].push_back(json_of(one, names));
  }
  output.page.title = "What a plan from one text costs another";
  output.page.summary = output.notes.front();
  output.page.sections.push_back({"What a plan costs elsewhere",
                                  "Row: what was planned on. Column: what is served.",
                                  {heat_map_of(transfers, names)}});
  output.json["seed"] = options.seed;
  output.json["options"] = options_json(flags, options, cluster);
  return output;
}

Result<Output> compare_loads_command(const Flags& flags, const Cluster& cluster, ThreadPool& pool) {
  if (flags.traces.size() > 1)
    return invalid_input(
        "--trace: a load profile is compared alone; what a plan from one costs another needs tokens");
  const LoadProfile loads = GRACE_TRY(read_load_profile(flags.traces.front()));
  PlanOptions options;
  options.seed = flags.request.seed;
  return compare_from_loads(loads, cluster, split_at_commas(flags.request.strategies), flags.request.slots,
                            options, pool);
}

Result<int> compare_command(const Flags& flags, const Context& context) {
  GRACE_TRY(check_output_flags(flags.output, "compare"));
  const Cluster cluster = GRACE_TRY(parse_cluster(flags.cluster));
  ThreadPool pool(GRACE_TRY(threads_for(flags.threads)));
  if (std::ranges::any_of(flags.traces, is_load_profile)) {
    Output output = GRACE_TRY(compare_loads_command(flags, cluster, pool));
    GRACE_TRY(emit(flags.output, context, std::move(output)));
    return 0;
  }
  std::vector<Trace> traces;
  for (const std::string& path : flags.traces) traces.push_back(GRACE_TRY(read_trace(path)));
  Output output = traces.size() == 1 ? GRACE_TRY(compare_one(flags, traces.front(), cluster, pool))
                                     : GRACE_TRY(compare_domains(flags, traces, cluster, pool));
  GRACE_TRY(emit(flags.output, context, std::move(output)));
  return 0;
}

}  // namespace

void add_compare(CLI::App& app, Context& context) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "compare", "Every strategy side by side on held-out tokens: which to use, and when none is worth it.");
  command
      ->add_option("--trace", flags->traces,
                   "a trace; several: what a plan from one costs another; or a load profile")
      ->required();
  command->add_option("--cluster", flags->cluster, "NODESxDEVICES, a preset or a cluster file")->required();
  command->add_option(
      "--strategies", flags->request.strategies,
      "which (default: all that are published, and joint); NAME-feedback routes with global feedback");
  command->add_option(
      "--slots", flags->request.slots,
      "copies a device may hold in a layer, for eplb and joint: numbers, or grace for what grace's own "
      "fullest device holds there; several after commas (default: one more than it must)");
  command->add_option("--splits", flags->request.splits,
                      "ways to hold half of the sequences out (default 5)");
  command->add_option("--batch", flags->request.batch,
                      "tokens that run together, over all devices (default 2048)");
  command->add_option("--shape", flags->request.shape,
                      "the model's sizes: a known name or a config.json (default: by the trace's model; "
                      "without, no seconds)");
  command->add_option("--effort", flags->request.effort,
                      "of joint's search, relative to the default (default 1)");
  command->add_option("--seed", flags->request.seed, "seed of everything random (default 0)");
  command->add_option("--threads", flags->threads,
                      "threads (default: all cores); the result is the same for any number");
  add_output_flags(*command, flags->output);
  command->footer(
      "Examples:\n  grace compare --trace out/en.trace --cluster 2x4 --slots 9,grace --html "
      "out/compare.html\n"
      "  grace compare --trace wiki.trace --trace math.trace --trace code.trace --cluster 2x4");
  command->callback(
      [flags, &context] { context.action = [flags, &context] { return compare_command(*flags, context); }; });
}

}  // namespace grace::app
