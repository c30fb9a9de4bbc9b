#include "load_commands.h"

#include <fmt/format.h>

#include "grace/report/report.h"

namespace grace::app {
namespace {

constexpr const char* kUnknown =
    "Which experts a token chooses together is not known: fan-out, remote nodes, bytes and times are left "
    "out, "
    "not zero.";
constexpr const char* kInSample =
    "In-sample: a load profile has no tokens to hold out, so a plan is judged on the loads it was made from.";

Json json_of(const LoadSummary& mean) {
  return {{"load_max_over_mean", mean.max_over_mean},
          {"load_std", mean.deviation_of_mean},
          {"slots_per_device_max", mean.fullest},
          {"copies_per_layer", mean.replicas}};
}

std::string moved_words(const std::string& strategy, int moved) {
  return fmt::format(
      "{}: EPLB's rule would have put {} copies beside a copy of the same expert; they went elsewhere.",
      strategy, moved);
}

std::string setting(const LoadProfile& loads, const Cluster& cluster) {
  return fmt::format("{}: loads of {} MoE layers of {} experts; cluster {}.",
                     loads.source.empty() ? loads.model : loads.source, loads.num_moe_layers(),
                     loads.num_experts, cluster.name);
}

}  // namespace

report::Table table_of(const std::vector<LoadFigures>& layers, const std::vector<int>& decoder_layers,
                       std::string title) {
  report::Table table;
  table.title = std::move(title);
  table.columns = {"layer", "load max/mean", "deviation/mean", "fullest", "copies"};
  const auto row = [&](std::string name, double peak, double deviation, double fullest, double replicas) {
    table.rows.push_back({std::move(name), fmt::format("{:.3f}", peak), fmt::format("{:.3f}", deviation),
                          fmt::format("{:.4g}", fullest), fmt::format("{:.4g}", replicas)});
  };
  for (std::size_t m = 0; m < layers.size(); ++m)
    row(std::to_string(decoder_layers[m]), layers[m].max_over_mean, layers[m].deviation_of_mean,
        layers[m].fullest, layers[m].replicas);
  const LoadSummary mean = mean_of(layers);
  row("mean", mean.max_over_mean, mean.deviation_of_mean, mean.fullest, mean.replicas);
  return table;
}

Json json_of(const std::vector<LoadFigures>& layers) {
  Json list = Json::array();
  for (const LoadFigures& layer : layers)
    list.push_back({{"load", layer.load},
                    {"load_max_over_mean", layer.max_over_mean},
                    {"load_std", layer.deviation_of_mean},
                    {"slots_per_device_max", layer.fullest},
                    {"copies", layer.replicas}});
  return list;
}

Result<int> plan_from_loads(const LoadProfile& loads, const Cluster& cluster, const PlanOptions& options,
                            const std::string& out, bool json, ThreadPool& pool) {
  const Plan plan = GRACE_TRY(make_plan(loads, cluster, options, pool)).plan;
  const std::vector<LoadFigures> layers = GRACE_TRY(judge_loads(plan, loads));
  GRACE_TRY(write_plan(out, plan));
  const int moved = second_copies_moved(plan);
  if (json) {
    Json told = {{"plan", out}, {"strategy", plan.strategy}, {"in_sample", true}, {"lossy", false}};
    told.update(json_of(mean_of(layers)));
    told["figures"] = plan.figures;
    told["provenance"] = plan.provenance;
    told["layers"] = json_of(layers);
    print_json(told);
    return 0;
  }
  print(report::terminal_table(
            table_of(layers, plan.decoder_layers,
                     fmt::format("{} over {} devices in {} nodes, from loads alone", plan.strategy,
                                 plan.num_devices(), plan.devices_per_node.size()))) +
        "\n");
  if (moved > 0) print(moved_words(plan.strategy, moved) + "\n");
  print(fmt::format("{}\n{}\n{}: written\n", kInSample, kUnknown, out));
  return 0;
}

Result<LoadComparison> compared_from_loads(const LoadProfile& loads, const Cluster& cluster,
                                           const std::vector<std::string>& strategies,
                                           const std::string& slots, const PlanOptions& options,
                                           ThreadPool& pool) {
  std::vector<std::string> names = strategies;
  if (names.empty())
    for (const std::string_view name : load_strategy_names()) names.emplace_back(name);
  std::vector<SlotsSpec> budgets = {SlotsSpec{}};
  if (!slots.empty()) budgets = GRACE_TRY(parse_slots(slots));
  return compare_loads(loads, cluster, names, budgets, options, pool);
}

Output output_of(const LoadProfile& loads, const Cluster& cluster, const LoadComparison& made,
                 std::uint64_t seed) {
  Output output;
  report::Table table{"", {"strategy", "fullest", "copies", "max/mean", "deviation/mean", "plan [s]"}, {}};
  Json rows = Json::array();
  for (const LoadRow& row : made.rows) {
    table.rows.push_back(
        {row.slots.empty() ? row.name : row.name + " @" + row.slots,
         fmt::format("{:.2f}", row.figures.fullest), fmt::format("{:.1f}", row.figures.replicas),
         fmt::format("{:.3f}", row.figures.max_over_mean),
         fmt::format("{:.3f}", row.figures.deviation_of_mean), fmt::format("{:.1f}", row.plan_seconds)});
    Json json = {
        {"name", row.name}, {"lossy", false}, {"slots", row.slots.empty() ? Json(nullptr) : Json(row.slots)}};
    json.update(json_of(row.figures));
    json["second_copies_moved"] = row.second_copies_moved;
    json["plan_seconds"] = row.plan_seconds;
    json["heldout"] = false;
    rows.push_back(std::move(json));
  }
  output.blocks.push_back({std::move(table), {}});
  output.notes = {setting(loads, cluster), made.recommendation, kInSample, kUnknown};
  for (const LoadRow& row : made.rows)
    if (row.second_copies_moved > 0)
      output.notes.push_back(
          moved_words(row.slots.empty() ? row.name : row.name + " @" + row.slots, row.second_copies_moved));
  output.page.title = fmt::format("{} on {}: which placement, from loads alone", loads.model, cluster.name);
  output.page.summary = made.recommendation + " " + output.notes.front();
  const LoadRow& chosen = made.rows[made.recommended];
  output.json = {{"kind", "load_profile"},
                 {"in_sample", true},
                 {"strategies", std::move(rows)},
                 {"recommendation",
                  {{"name", chosen.name},
                   {"slots", chosen.slots.empty() ? Json(nullptr) : Json(chosen.slots)},
                   {"best", made.rows[made.best].name},
                   {"measure", "load_max_over_mean"},
                   {"text", made.recommendation}}},
                 {"seed", seed}};
  return output;
}

Result<Output> compare_from_loads(const LoadProfile& loads, const Cluster& cluster,
                                  const std::vector<std::string>& strategies, const std::string& slots,
                                  const PlanOptions& options, ThreadPool& pool) {
  const LoadComparison made =
      GRACE_TRY(compared_from_loads(loads, cluster, strategies, slots, options, pool));
  return output_of(loads, cluster, made, options.seed);
}

Result<int> simulate_loads(const LoadProfile& loads, const Plan& plan, const Cluster& cluster, bool json) {
  const std::vector<std::string> faults = violations(plan, cluster);
  if (!faults.empty()) return invalid_input("plan: " + faults.front());
  const std::vector<LoadFigures> layers = GRACE_TRY(judge_loads(plan, loads));
  if (json) {
    Json told = {{"kind", "load_profile"}, {"plan", plan.strategy}, {"cluster", cluster.name}};
    told.update(json_of(mean_of(layers)));
    told["layers"] = json_of(layers);
    print_json(told);
    return 0;
  }
  print(report::terminal_table(table_of(layers, plan.decoder_layers,
                                        fmt::format("{} on {}: loads", plan.strategy, cluster.name))) +
        "\n" + setting(loads, cluster) + "\nAn expert's load is shared equally by its copies. " + kUnknown +
        "\n");
  return 0;
}

}  // namespace grace::app
