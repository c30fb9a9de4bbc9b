// grace plan: trace, cluster and strategy in, plan out.
#include <fmt/format.h>

#include <memory>
#include <thread>

#include "analysis.h"
#include "context.h"
#include "grace/planner/planner.h"

namespace grace::app {
namespace {

struct Flags {
  std::string trace, cluster, strategy = "grace", out;
  double r = -1;
  std::uint64_t seed = 0;
  int threads = 0;
  bool json = false;
};

Result<int> plan(const Flags& flags) {
  const Cluster cluster = GRACE_TRY(parse_cluster(flags.cluster));
  const Trace trace = GRACE_TRY(read_trace(flags.trace));
  if (flags.threads < 0 || flags.threads > 1024)
    return invalid_input(fmt::format("--threads: {} is outside [1, 1024]", flags.threads));
  if (flags.r > 1) return invalid_input(fmt::format("--r: {} is outside [0, 1]", flags.r));
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  ThreadPool pool(flags.threads > 0 ? flags.threads : cores);
  PlanOptions options;
  options.strategy = flags.strategy;
  options.r = flags.r;
  options.seed = flags.seed;
  const PlanResult made = GRACE_TRY(make_plan(trace, cluster, options, pool));
  GRACE_TRY(write_plan(flags.out, made.plan));
  const std::vector<LayerStats> stats = count_layers(trace, pool);
  const std::vector<LayerFigures> figures = figures_of(made.plan, stats, flags.seed);
  if (flags.json) {
    const LayerFigures mean = mean_of(figures);
    print_json({{"plan", flags.out},
                {"strategy", made.plan.strategy},
                {"affinity_kept", mean.kept_on_device},
                {"affinity_kept_by_random_groups", mean.random_groups},
                {"copies", mean.copies},
                {"layers", json_of(figures)}});
    return 0;
  }
  print(report::terminal_table(table_of(made.plan, figures)));
  print(fmt::format("{}: written\n", flags.out));
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Context& context) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("plan", "Plans which device holds which experts, and copies of which.");
  command->add_option("--trace", flags->trace, "the trace to learn from")->required();
  command->add_option("--cluster", flags->cluster, "NODESxDEVICES, a preset or a cluster file")->required();
  std::string names;
  for (const std::string_view name : strategy_names())
    names += (names.empty() ? "" : ", ") + std::string(name);
  command->add_option("--strategy", flags->strategy, "one of " + names + " (default grace)");
  command->add_option("--out", flags->out, "the plan file")->required();
  command->add_option("--r", flags->r,
                      "how far group sizes may differ, in [0, 1] (default: the knee of the curve)");
  command->add_option("--seed", flags->seed, "seed of everything random (default 0)");
  command->add_option("--threads", flags->threads,
                      "threads (default: all cores); the plan is the same for any number");
  command->add_flag("--json", flags->json, "one JSON value");
  command->footer(
      "Example:\n  grace plan --trace out/en.trace --cluster 2x2 --strategy grace --out out/plan.json");
  command->callback([flags, &context] { context.action = [flags] { return plan(*flags); }; });
}

}  // namespace grace::app
