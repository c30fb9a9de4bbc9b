// grace plan: trace, cluster and strategy in, plan out.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "analysis.h"
#include "context.h"
#include "grace/planner/budget.h"
#include "grace/planner/certify.h"
#include "grace/planner/loads.h"
#include "grace/planner/planner.h"
#include "grace/sizing/requests.h"
#include "load_commands.h"

namespace grace::app {
namespace {

struct Flags {
  std::string trace, cluster, out;
  PlanRequest request;
  int threads = 0;
  bool json = false;
};

// What the plan says of itself.
report::Table own_words(const Plan& plan) {
  report::Table table{"What the plan says of itself", {"", "value"}, {}};
  for (const auto& [name, value] : plan.figures) {
    std::string words = name;
    std::ranges::replace(words, '_', ' ');
    table.rows.push_back({words, fmt::format("{:.4g}", value)});
  }
  table.rows.push_back({"routing", plan.routing});
  const std::vector<int> fullest = fullest_devices(plan);
  const auto [least, most] = std::ranges::minmax(fullest);
  table.rows.push_back({"copies on the fullest device",
                        least == most ? std::to_string(most) : fmt::format("{} to {}", least, most)});
  for (const auto& [name, value] : plan.provenance)
    if (name != "strategy" && name != "cluster" && name != "program_version") {
      std::string words = name;
      std::ranges::replace(words, '_', ' ');
      table.rows.push_back({words, value});
    }
  return table;
}

// The certificate becomes part of what the plan says of itself.
void add_worth(const PlanWorth& worth, Plan& plan) {
  std::string name(name_of(worth.aim));
  std::ranges::replace(name, '-', '_');
  plan.figures[name + "_choose"] = worth.value;
  plan.figures[name + "_of_default_placement_choose"] = worth.default_value;
  plan.figures["routing_bound_choose"] = worth.bounds.routing_bound;
  plan.figures["routing_gap_choose"] = worth.bounds.gap();
  plan.figures["placement_bound_choose"] = worth.bounds.placement_bound;
  plan.figures["load_max_over_mean_choose"] = worth.bounds.max_over_mean;
  plan.figures["least_load_max_over_mean_choose"] = worth.bounds.least_max_over_mean;
}

std::string sentence_of(const PlanWorth& worth) {
  if (!worth.worth_it())
    return fmt::format(
        "Not worth it: on tokens kept apart the default placement is within noise ({} {:.4g} against "
        "{:.4g}).\n",
        name_of(worth.aim), worth.default_value, worth.value);
  return fmt::format(
      "On tokens kept apart {:.1f} % less {} than the default placement ({:.4g} against {:.4g}); no routing "
      "over these "
      "copies could be more than {:.1f} % better.\n",
      100 * (1 - worth.value / worth.default_value), name_of(worth.aim), worth.value, worth.default_value,
      100 * (1 - worth.bounds.routing_bound / worth.bounds.routed));
}

Result<int> plan_loads(const Flags& flags, const Cluster& cluster, ThreadPool& pool) {
  const LoadProfile loads = GRACE_TRY(read_load_profile(flags.trace));
  GRACE_TRY(check_load_strategy(flags.request.strategy, flags.trace));
  const PlanOptions options = GRACE_TRY(plan_options(flags.request, loads));
  return plan_from_loads(loads, cluster, options, flags.out, flags.json, pool);
}

Result<int> plan(const Flags& flags) {
  const Cluster cluster = GRACE_TRY(parse_cluster(flags.cluster));
  ThreadPool pool(GRACE_TRY(threads_for(flags.threads)));
  if (is_load_profile(flags.trace)) return plan_loads(flags, cluster, pool);
  const Trace trace = GRACE_TRY(read_trace(flags.trace));
  const PlanOptions options = GRACE_TRY(plan_options(flags.request, trace, cluster, pool));
  PlanResult made = GRACE_TRY(make_plan(trace, cluster, options, pool));
  const Aim aim = flags.request.strategy == "joint-fast" ? Aim::kJudgeFast : Aim::kJudgeSlow;
  const PlanWorth worth =
      GRACE_TRY(worth_of(made.plan, trace, cluster, aim, flags.request.batch, flags.request.seed, pool));
  add_worth(worth, made.plan);
  GRACE_TRY(write_plan(flags.out, made.plan));
  const std::vector<LayerStats> stats = count_layers(trace, pool);
  const std::vector<LayerFigures> figures = figures_of(made.plan, stats, flags.request.seed);
  if (flags.json) {
    const LayerFigures mean = mean_of(figures);
    print_json({{"plan", flags.out},
                {"strategy", made.plan.strategy},
                {"routing", made.plan.routing},
                {"lossy", made.plan.is_lossy()},
                {"affinity_kept", mean.kept_on_device},
                {"affinity_kept_by_random_groups", mean.random_groups},
                {"copies", mean.copies},
                {"slots_on_fullest_device", fullest_devices(made.plan)},
                {"figures", made.plan.figures},
                {"provenance", made.plan.provenance},
                {"layers", json_of(figures)}});
    return 0;
  }
  print(report::terminal_table(table_of(made.plan, figures)) + "\n");
  print(report::terminal_table(own_words(made.plan)));
  print(sentence_of(worth));
  if (const int moved = second_copies_moved(made.plan); moved > 0)
    print(
        fmt::format("EPLB's rule would have put {} copies beside a copy of the same expert; they went "
                    "elsewhere.\n",
                    moved));
  if (made.plan.is_lossy())
    print(
        "Lossy: the gate is held to partners, so a model run by this plan writes another text; grace eval "
        "--plan "
        "says what that costs.\n");
  print(fmt::format("{}: written\n", flags.out));
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Context& context) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("plan", "Plans which device holds which experts, and copies of which.");
  command
      ->add_option("--trace", flags->trace,
                   "the trace to learn from, or a load profile, which vanilla, eplb and eplb-flat take")
      ->required();
  command->add_option("--cluster", flags->cluster, "NODESxDEVICES, a preset or a cluster file")->required();
  command->add_option("--strategy", flags->request.strategy,
                      fmt::format("one of {} (default grace)", fmt::join(strategy_names(), ", ")));
  command->add_option("--out", flags->out, "the plan file")->required();
  command->add_option(
      "--slots", flags->request.slots,
      "copies a device may hold in a layer, for eplb and joint: a number, or grace for what grace's own "
      "fullest device holds there (default: the cluster's, else one more than it must)");
  command->add_option("--shape", flags->request.shape,
                      "the model's sizes, which joint needs: a known name or a config.json (default: by the "
                      "trace's model)");
  command->add_option("--batch", flags->request.batch,
                      "tokens that run together, over all devices, for joint (default 2048)");
  command->add_option(
      "--memory", flags->request.memory_bytes,
      "bytes for experts' weights on each device over all layers, in place of --slots; joint spreads them");
  command->add_option("--effort", flags->request.effort,
                      "of joint's search, relative to the default (default 1)");
  command->add_option(
      "--partners", flags->request.partners,
      "experts that c2r lets a token choose besides its best (default: two for each it chooses)");
  command->add_option("--r", flags->request.r,
                      "how far grace's group sizes may differ, in [0, 1] (default: the knee of the curve)");
  command->add_option("--seed", flags->request.seed, "seed of everything random (default 0)");
  command->add_option("--threads", flags->threads,
                      "threads (default: all cores); the plan is the same for any number");
  command->add_flag("--json", flags->json, "one JSON value");
  command->footer(
      "Example:\n  grace plan --trace out/en.trace --cluster 2x2 --strategy grace --out out/plan.json\n"
      "  grace plan --trace out/en.trace --cluster h100:2x4 --strategy joint --shape olmoe --slots 9 --out "
      "out/joint.json");
  command->callback([flags, &context] { context.action = [flags] { return plan(*flags); }; });
}

}  // namespace grace::app
