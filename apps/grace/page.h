// The pictures of a plan and of a run, out of plain numbers, for the report's page.
#pragma once

#include <span>
#include <string>

#include "analysis.h"
#include "grace/report/report.h"
#include "record.h"

namespace grace::app {

// Loads per layer, affinity before and after grouping, who holds what, traffic between devices: `plan` beside
// vanilla.
Status add_plan_pictures(report::Page& page, const Trace& trace, const Plan& plan, const Cluster& cluster,
                         Dispatch dispatch, std::span<const LayerStats> stats);

// One layer of one step: each rank's work, and its messages in a lane of their own, from when the first rank
// begins. Where the record holds spans, those; else gate and experts are drawn from their durations, before
// and between the exchanges. A layer or step that is not there gives no spans.
report::Timeline layer_timeline(const RunRecord& record, std::size_t step, std::size_t layer);

}  // namespace grace::app
