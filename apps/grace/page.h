// The pictures of a plan and of a run, out of plain numbers, for the report's page.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "analysis.h"
#include "grace/report/report.h"
#include "record.h"

namespace grace::app {

// A plan beside vanilla, on one trace under one dispatch.
struct PlanEffect {
  Replay before, after;  // vanilla's and the plan's
  std::vector<LayerFigures> default_figures, figures;
};
// `figures` are the plan's. Errors: those of replay.
Result<PlanEffect> effect_of(const Trace& trace, const Plan& plan, const Cluster& cluster, Dispatch dispatch,
                             std::span<const LayerStats> stats, std::vector<LayerFigures> figures);

// Vectors dispatched over all layers: those that cross nodes, or those that stay inside one.
double vectors_across(const Replay& replayed, const Cluster& cluster, bool nodes);

// Assignments of each device, [M][D], under vanilla and under the plan, and of each expert, [M][E].
struct PageLoads {
  std::vector<std::vector<double>> before, after, of_experts;
};
// layers: their names; how: how loads were counted.
report::Section load_section(const Plan& plan, const Cluster& cluster, const PageLoads& loads,
                             const std::vector<std::string>& layers, const std::string& how);
report::Section holders_section(const Plan& plan, const Cluster& cluster, report::Table by_layer);
// The experts of each device, [M][D].
Json holders_json(const Plan& plan);

// Affinity before and after grouping, loads, traffic between devices and who holds what, as sections; the
// page's layers become the plan's.
void add_plan_sections(report::Page& page, const Plan& plan, const Cluster& cluster, const PlanEffect& effect,
                       std::span<const LayerStats> stats);
// The numbers of these sections.
Json json_of(const Plan& plan, const PlanEffect& effect, std::span<const LayerStats> stats);

// One layer of one step: each rank's work, and its messages in a lane of their own, from when the first rank
// begins. Where the record holds spans, those; else gate and experts are drawn from their durations, before
// and between the exchanges. A layer or step that is not there gives no spans.
report::Timeline layer_timeline(const RunRecord& record, std::size_t step, std::size_t layer);

}  // namespace grace::app
