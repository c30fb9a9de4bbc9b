// The published grouping, one knob turned at a time: the size bound, and what the busiest groups take.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>

#include "grace/planner/budget.h"
#include "grace/planner/planner.h"
#include "grace/replication/replication.h"
#include "reproduce_claims.h"
#include "reproduce_holdout.h"
#include "reproduce_tables.h"

namespace grace::app {
namespace {

double affinity_in(const LayerStats& stats, const LayerPlan& layer) {
  std::vector<int> group_of_expert(static_cast<std::size_t>(stats.num_experts), 0);
  for (std::size_t d = 0; d < layer.primaries_of_device.size(); ++d)
    for (const ExpertId e : layer.primaries_of_device[d]) group_of_expert[e.idx()] = static_cast<int>(d);
  return affinity_kept(stats, group_of_expert);
}

// S of the published curve: sqrt(mean over devices of (|C_d| - m)^2), m = floor(n / L) of the device's node.
double size_deviation(const Cluster& cluster, const Groups& groups) {
  double squares = 0;
  std::size_t first = 0;
  for (const std::vector<Device>& node : cluster.devices_of_node) {
    std::size_t experts = 0;
    for (std::size_t d = 0; d < node.size(); ++d) experts += groups[first + d].size();
    const auto even = static_cast<double>(experts / node.size());
    for (std::size_t d = 0; d < node.size(); ++d)
      squares += std::pow(static_cast<double>(groups[first + d].size()) - even, 2);
    first += node.size();
  }
  return std::sqrt(squares / static_cast<double>(groups.size()));
}

constexpr std::array kSizeBoundColumns = {
    Column{"affinity_kept", "affinity kept [%]", 100, 1},
    Column{"size_deviation", "size deviation", 1, 2},
    Column{"remote_nodes_per_token", "x", 1, 3},
    Column{"forwards_per_token", "y", 1, 3},
    Column{"load_max_over_mean", "max/mean", 1, 3},
    Column{"bytes_cross_node", "across nodes [MB]", 1e-6, 2},
    Column{"bytes_intra_node", "inside nodes [MB]", 1e-6, 2},
    Column{"layer_time", "layer [us]", 1e6, 0},
};

Status add_bounds(const Subject& subject, const Holdout& holdout, const Measure& measure,
                  std::vector<Row>& rows, std::vector<int>& knees) {
  const std::vector<TwoLevels> free = levels_of(holdout, measure, NodeSizes::kFree);
  const std::vector<TwoLevels> equal = levels_of(holdout, measure, NodeSizes::kEqual);
  const std::vector<KneePoint> curve = knee_curve(holdout.stats, free, measure.cluster, measure.pool);
  rows.resize(curve.size() + 2);
  knees.resize(rows.size(), 0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool is_uniform = i == 0;
    const bool is_free = i + 1 == rows.size();
    const double r = is_uniform ? 0 : is_free ? kNoSizeBound : curve[i - 1].r;
    rows[i].name = is_uniform ? "nodes equal, r 0" : is_free ? "free" : fmt::format("{:.2f}", r);
    std::vector<LayerPlan> layers = grouped(holdout, measure, is_uniform ? equal : free, r);
    rows[i].add("affinity_kept", mean_over_layers(layers, [&](std::size_t m, const LayerPlan& layer) {
                  return affinity_in(holdout.judged_stats[m], layer);
                }));
    rows[i].add("size_deviation", mean_over_layers(layers, [&](std::size_t, const LayerPlan& layer) {
                  return size_deviation(measure.cluster, layer.primaries_of_device);
                }));
    const Plan plan = plan_of(subject, measure, std::move(layers), "primary");
    rows[i].add(GRACE_TRY(judged_at(plan, subject, holdout, measure, measure.batch)), subject.sizes);
  }
  ++knees[knee_of(curve) + 1];
  return {};
}

}  // namespace

Result<ReproducedTable> size_bound_table(const Subject& subject, const Measure& measure) {
  std::vector<Row> rows;
  std::vector<int> knees;
  const OnSplit on_split = [&](const Holdout& holdout) -> Status {
    return add_bounds(subject, holdout, measure, rows, knees);
  };
  GRACE_TRY(for_each_split("size-bound", subject, measure, on_split));
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (knees[i] > 0) rows[i].name += fmt::format(" (knee of {} in {})", knees[i], measure.splits);
  const std::vector<Claim> claims = size_bound_claims(rows);
  return reproduced(
      "size-bound", subject.name,
      table_of(fmt::format("Size bound r, no copies, {}", subject.name), "r", rows, kSizeBoundColumns), rows,
      claims, size_bound_notes(rows));
}

namespace {

constexpr std::array kBusiestColumns = {
    Column{"busiest_device", "busiest device [%]", 100, 1},
    Column{"busiest_half", "busiest half [%]", 100, 1},
    Column{"worst_layer", "busiest device, worst layer [%]", 100, 1},
    Column{"load_max_over_mean", "max/mean", 1, 3},
    Column{"load_std", "load deviation", 1, 3},
    Column{"devices_per_token", "devices a token", 1, 2},
};

Status add_shares(const Plan& plan, const Subject& subject, const Holdout& holdout, const Measure& measure,
                  Row& row) {
  double worst = 0;
  double half = 0;
  const double first = mean_over_layers(plan.layers, [&](std::size_t m, const LayerPlan& layer) {
    const std::vector<double> shares = shares_of(holdout.judged_stats[m], layer.primaries_of_device);
    worst = std::max(worst, shares.front());
    const auto middle = shares.begin() + static_cast<std::ptrdiff_t>((shares.size() + 1) / 2);
    half += std::accumulate(shares.begin(), middle, 0.0) / static_cast<double>(plan.layers.size());
    return shares.front();
  });
  row.add("busiest_device", first);
  row.add("busiest_half", half);
  row.add("worst_layer", worst);
  row.add(GRACE_TRY(judged_at(plan, subject, holdout, measure, measure.batch)), subject.sizes);
  return {};
}

struct Grouped {
  const char* name;
  const char* strategy;  // nullptr: no bound at all
  double r;
};
constexpr std::array kGroupings = {
    Grouped{"vanilla (contiguous)", "vanilla", 0},
    Grouped{"occult (one level, equal)", "occult", 0},
    Grouped{"uniform (two levels, equal)", "grace-uniform", 0},
    Grouped{"HG, r 0.15", "grace-hg", kPublishedR},
    Grouped{"HG, r at the knee", "grace-hg", -1},
    Grouped{"free", nullptr, kNoSizeBound},
};

}  // namespace

Result<ReproducedTable> busiest_table(const Subject& subject, const Measure& measure) {
  std::vector<Row> rows(kGroupings.size());
  const OnSplit on_split = [&](const Holdout& holdout) -> Status {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Grouped& how = kGroupings[i];
      rows[i].name = how.name;
      Plan plan;
      if (how.strategy == nullptr) {
        const std::vector<TwoLevels> levels = levels_of(holdout, measure, NodeSizes::kFree);
        plan = plan_of(subject, measure, grouped(holdout, measure, levels, how.r), "primary");
      } else {
        PlanOptions options;
        options.strategy = how.strategy;
        options.r = how.r;
        options.seed = holdout.seed;
        plan = GRACE_TRY(make_plan(holdout.learn, measure.cluster, options, measure.pool)).plan;
      }
      GRACE_TRY(add_shares(plan, subject, holdout, measure, rows[i]));
    }
    return {};
  };
  GRACE_TRY(for_each_split("busiest", subject, measure, on_split));
  const std::vector<Claim> claims = {
      {"after grouping a few groups take most: busiest half, HG r 0.15 against vanilla", "more", 1,
       change_of(rows[3], rows[0], "busiest_half")},
      {"the same, the busiest device", "more", 1, change_of(rows[3], rows[0], "busiest_device")},
      {"the same without a size bound", "more", 1, change_of(rows[5], rows[0], "busiest_device")},
  };
  const double even = 100.0 / measure.cluster.num_devices();
  return reproduced(
      "busiest", subject.name,
      table_of(fmt::format("What the busiest groups take ({:.1f} % would be even), {}", even, subject.name),
               "groups", rows, kBusiestColumns),
      rows, claims, {});
}

}  // namespace grace::app
