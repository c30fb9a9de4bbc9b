#include "grace/planner/loads.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <numeric>

namespace grace {
namespace {

// A hundredth of the mean load is less than one batch differs from the next.
constexpr double kWithinBest = 0.01;

LoadFigures figures_of(const LayerPlan& layer, std::span<const std::int64_t> loads) {
  LoadFigures figures;
  figures.load.assign(layer.primaries_of_device.size(), 0);
  const auto hosts = layer.hosts_of_expert(static_cast<int>(loads.size()));
  std::vector<int> held(figures.load.size(), 0);
  for (std::size_t e = 0; e < hosts.size(); ++e)
    for (const DeviceId d : hosts[e]) {
      figures.load[d.idx()] += static_cast<double>(loads[e]) / static_cast<double>(hosts[e].size());
      ++held[d.idx()];
    }
  figures.fullest = std::ranges::max(held);
  figures.replicas = std::accumulate(held.begin(), held.end(), 0) - static_cast<int>(loads.size());
  const double mean = std::accumulate(figures.load.begin(), figures.load.end(), 0.0) /
                      static_cast<double>(figures.load.size());
  if (mean == 0) return figures;
  figures.max_over_mean = std::ranges::max(figures.load) / mean;
  double squares = 0;
  for (const double load : figures.load) squares += (load - mean) * (load - mean);
  figures.deviation_of_mean = std::sqrt(squares / static_cast<double>(figures.load.size())) / mean;
  return figures;
}

std::string label_of(const LoadRow& row) {
  return row.slots.empty() ? row.name : fmt::format("{} at {} slots", row.name, row.slots);
}

void recommend(LoadComparison& comparison) {
  const std::vector<LoadRow>& rows = comparison.rows;
  const auto peak = [](const LoadRow& row) { return row.figures.max_over_mean; };
  comparison.best = static_cast<std::size_t>(std::ranges::min_element(rows, {}, peak) - rows.begin());
  comparison.recommended = comparison.best;
  const double bound = peak(rows[comparison.best]) + kWithinBest;
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (peak(rows[i]) <= bound && rows[i].figures.fullest < rows[comparison.recommended].figures.fullest)
      comparison.recommended = i;
  const LoadRow& chosen = rows[comparison.recommended];
  const auto vanilla = std::ranges::find(rows, "vanilla", &LoadRow::name);
  if (vanilla == rows.end() || &*vanilla == &chosen) {
    comparison.recommendation =
        vanilla == rows.end()
            ? fmt::format("Of these, {} shares the load most evenly (max/mean {:.3f}, in-sample).",
                          label_of(chosen), peak(chosen))
            : fmt::format(
                  "Not worth it: the default placement (vanilla) shares the load as evenly as any (max/mean "
                  "{:.3f}, in-sample).",
                  peak(*vanilla));
    return;
  }
  const double more = chosen.figures.fullest - vanilla->figures.fullest;
  comparison.recommendation =
      fmt::format("Use {}: max/mean load {:.3f} against {:.3f} of the default placement, in-sample, for {}.",
                  label_of(chosen), peak(chosen), peak(*vanilla),
                  more < 0.05 ? std::string("no more memory")
                              : fmt::format("room for {:.1f} more experts a device and layer", more));
}

}  // namespace

Result<std::vector<LoadFigures>> judge_loads(const Plan& plan, const LoadProfile& loads) {
  GRACE_TRY(check_fits(plan, loads.num_experts, loads.decoder_layers,
                       "the load profile of " + (loads.source.empty() ? loads.model : loads.source)));
  std::vector<LoadFigures> layers;
  for (std::size_t m = 0; m < plan.layers.size(); ++m)
    layers.push_back(figures_of(plan.layers[m], loads.loads[m]));
  return layers;
}

LoadSummary mean_of(std::span<const LoadFigures> layers) {
  LoadSummary mean{.max_over_mean = 0};
  const auto count = static_cast<double>(std::max<std::size_t>(layers.size(), 1));
  for (const LoadFigures& layer : layers) {
    mean.max_over_mean += layer.max_over_mean / count;
    mean.deviation_of_mean += layer.deviation_of_mean / count;
    mean.fullest += layer.fullest / count;
    mean.replicas += layer.replicas / count;
  }
  return mean;
}

int second_copies_moved(const Plan& plan) {
  const auto found = plan.provenance.find("second_copies_moved");
  int moved = 0;
  if (found != plan.provenance.end())
    std::from_chars(found->second.data(), found->second.data() + found->second.size(), moved);
  return moved;
}

Result<LoadComparison> compare_loads(const LoadProfile& loads, const Cluster& cluster,
                                     std::span<const std::string> strategies,
                                     std::span<const SlotsSpec> slots, const PlanOptions& options,
                                     ThreadPool& pool) {
  if (strategies.empty()) return invalid_input("strategies: none is named");
  LoadComparison comparison;
  for (const std::string& strategy : strategies) {
    const bool takes_slots = strategy.starts_with("eplb");
    for (std::size_t i = 0; i < (takes_slots ? slots.size() : 1); ++i) {
      PlanOptions one = options;
      one.strategy = strategy;
      if (takes_slots && slots[i].as_grace)
        return invalid_input("slots: grace's own need the tokens that a load profile lacks; name a number");
      if (takes_slots && slots[i].slots > 0) one.slots = {slots[i].slots};
      const auto start = std::chrono::steady_clock::now();
      const PlanResult made = GRACE_TRY(make_plan(loads, cluster, one, pool));
      LoadRow& row = comparison.rows.emplace_back();
      row.plan_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      row.name = strategy;
      if (takes_slots) row.slots = slots[i].name();
      row.figures = mean_of(GRACE_TRY(judge_loads(made.plan, loads)));
      row.second_copies_moved = second_copies_moved(made.plan);
    }
  }
  recommend(comparison);
  return comparison;
}

}  // namespace grace
