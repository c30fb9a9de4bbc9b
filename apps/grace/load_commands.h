// What plan, compare and simulate do where --trace names a load profile: a source that counted, and did not
// keep what each token chose.
#pragma once

#include <string>
#include <vector>

#include "grace/affinity/load_profile.h"
#include "grace/base/thread_pool.h"
#include "grace/cluster/cluster.h"
#include "grace/plan/plan.h"
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
Result<int> simulate_loads(const LoadProfile& loads, const Plan& plan, const Cluster& cluster, bool json);

}  // namespace grace::app
