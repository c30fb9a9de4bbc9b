// What loads alone say of a plan, and of strategies side by side: how evenly work is shared, and nothing of
// where tokens travel.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "grace/affinity/load_profile.h"
#include "grace/base/result.h"
#include "grace/base/thread_pool.h"
#include "grace/cluster/cluster.h"
#include "grace/plan/plan.h"
#include "grace/planner/budget.h"
#include "grace/planner/planner.h"

namespace grace {

// One layer, an expert's load shared equally by its copies.
struct LoadFigures {
  std::vector<double> load;      // [D] assignments
  double max_over_mean = 1;      // 1 where there is no load
  double deviation_of_mean = 0;  // standard deviation over devices, over their mean
  int fullest = 0;               // copies on the fullest device
  int replicas = 0;
};
// [M]. Errors: invalid_input where the plan is for other layers or experts.
Result<std::vector<LoadFigures>> judge_loads(const Plan& plan, const LoadProfile& loads);

// The mean over layers.
struct LoadSummary {
  double max_over_mean = 1, deviation_of_mean = 0, fullest = 0, replicas = 0;
};
LoadSummary mean_of(std::span<const LoadFigures> layers);

struct LoadRow {
  std::string name;
  std::string slots;  // as asked; empty for strategies that take what they take
  LoadSummary figures;
  int second_copies_moved = 0;  // that EPLB would have put beside a copy of the same expert
  double plan_seconds = 0;
};
struct LoadComparison {
  std::vector<LoadRow> rows;
  std::size_t best = 0;         // lowest max/mean
  std::size_t recommended = 0;  // the cheapest in memory within a hundredth of the best
  std::string recommendation;   // one sentence
};
// Strategies of load_strategy_names() on the very loads they planned with: there is nothing to hold out.
// Errors: those of make_plan.
Result<LoadComparison> compare_loads(const LoadProfile& loads, const Cluster& cluster,
                                     std::span<const std::string> strategies,
                                     std::span<const SlotsSpec> slots, const PlanOptions& options,
                                     ThreadPool& pool);

// Second copies that the plan's strategy moved, by its provenance; 0 where it says nothing.
int second_copies_moved(const Plan& plan);

}  // namespace grace
