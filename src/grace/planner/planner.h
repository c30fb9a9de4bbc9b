// Joins the rooms: trace and cluster in, plan out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "grace/affinity/load_profile.h"
#include "grace/base/result.h"
#include "grace/base/thread_pool.h"
#include "grace/cluster/cluster.h"
#include "grace/cost/objective.h"
#include "grace/grouping/grouping.h"
#include "grace/plan/plan.h"
#include "grace/trace/trace.h"

namespace grace {

struct PlanOptions {
  std::string strategy = "grace";  // one of strategy_names()
  double r = -1;                   // size bound of the device level; negative: the knee of the (S, U) curve
  std::uint64_t seed = 0;
  // Copies each device may hold, by MoE layer [M], or one number for all of them. Empty: what the cluster
  // says, and where it does not say, E/D rounded up and one more. Bounds `eplb` and `joint`; the published
  // methods take what they take, within the cluster's slots.
  std::vector<int> slots = {};
  // Bytes for the weights of experts on each device, over all layers; 0: what the cluster says. Where there
  // is such a budget, and no slots, `joint` spreads it over the layers by what the next slot is worth in
  // each, and the others get as many slots in every layer.
  double memory_bytes = 0;
  // The sizes and the batch for which `joint` minimises layer time; the strategy sets the aim.
  Objective objective = {};
  // Experts that c2r lets a token choose besides its best, in [K - 1, E - 1]; 0: 2 K, or as many as there
  // are.
  int partners = 0;
  double effort = 1;  // of the search of `joint`: its proposals, relative to the default
};

std::vector<std::string_view> strategy_names();
// Of each expert under PlanOptions::partners.
int partners_for(int option, int num_experts, int experts_per_token);
// Whether the strategy minimises seconds, and so needs objective.sizes; false for an unknown one.
bool needs_sizes(std::string_view strategy);

struct PlanResult {
  Plan plan;
  std::vector<KneePoint> knee;  // the curve r was chosen from; empty when it was given or not used
};

// The plan of every MoE layer of the trace. Same trace, cluster and options: same plan at any thread count.
// violations(plan, cluster) is empty. Errors: invalid_input for an unknown strategy, an empty trace, or slots
// that cannot hold every expert once.
Result<PlanResult> make_plan(const Trace& trace, const Cluster& cluster, const PlanOptions& options,
                             ThreadPool& pool);

// The same from loads alone, for the strategies of load_strategy_names(). Errors: also for the others, naming
// what they would need to know.
Result<PlanResult> make_plan(const LoadProfile& loads, const Cluster& cluster, const PlanOptions& options,
                             ThreadPool& pool);
std::vector<std::string_view> load_strategy_names();
// Errors: invalid_input for a strategy that loads alone are not enough for. `profile` names them.
Status check_load_strategy(std::string_view strategy, std::string_view profile);

// The sequences that make_plan keeps from its search to choose among results: a fifth of them, or all where
// that fifth would be empty. Ascending.
std::vector<int> choose_sequences(const Trace& trace, std::uint64_t seed);

}  // namespace grace
