// What plan, compare, report and simulate do where --trace names a load profile: a source that counted, and
// did not keep what each token chose.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "grace/affinity/load_profile.h"
#include "grace/base/thread_pool.h"
#include "grace/cluster/cluster.h"
#include "grace/plan/plan.h"
#include "grace/planner/loads.h"
#include "grace/planner/planner.h"
#include "output.h"

namespace grace::app {

// Writes the plan to `out` and prints how it shares the load.
Result<int> plan_from_loads(const LoadProfile& loads, const Cluster& cluster, const PlanOptions& options,
                            const std::string& out, bool json, ThreadPool& pool);
// strategies: empty for all that loads are enough for. slots: as --slots; empty for the default.
Result<Output> compare_from_loads(const LoadProfile& loads, const Cluster& cluster,
                                  const std::vector<std::string>& strategies, const std::string& slots,
                                  const PlanOptions& options, ThreadPool& pool);
// The two steps of it. Errors: those of compare_loads.
Result<LoadComparison> compared_from_loads(const LoadProfile& loads, const Cluster& cluster,
                                           const std::vector<std::string>& strategies,
                                           const std::string& slots, const PlanOptions& options,
                                           ThreadPool& pool);
Output output_of(const LoadProfile& loads, const Cluster& cluster, const LoadComparison& made,
                 std::uint64_t seed);
// A row for each layer, and the mean.
report::Table table_of(const std::vector<LoadFigures>& layers, const std::vector<int>& decoder_layers,
                       std::string title);
Json json_of(const std::vector<LoadFigures>& layers);

// The page of grace report, as far as loads say: which placement, and how it shares them.
struct LoadsReport {
  std::string trace, html;   // paths
  std::optional<Plan> plan;  // drawn in place of the one recommended
  bool compares = true;      // else the plan alone
  std::string strategies, slots;
  std::uint64_t seed = 0;
  bool json = false;
};
Result<int> report_from_loads(const LoadProfile& loads, const Cluster& cluster, const LoadsReport& asked,
                              const Context& context, ThreadPool& pool);

Result<int> simulate_loads(const LoadProfile& loads, const Plan& plan, const Cluster& cluster, bool json);

}  // namespace grace::app
