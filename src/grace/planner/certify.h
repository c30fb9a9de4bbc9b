// How far a plan is from what is possible: bounds for one batch of tokens, and what the plan itself does with
// it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grace/base/result.h"
#include "grace/base/thread_pool.h"
#include "grace/cluster/cluster.h"
#include "grace/cost/objective.h"
#include "grace/plan/plan.h"
#include "grace/planner/judge.h"
#include "grace/trace/trace.h"

namespace grace {

// Means over layers, in the yardstick's unit per token.
struct Certificate {
  double routed = 0;         // the plan as it routes the batch
  double routing_bound = 0;  // what no routing over the plan's copies can go below
  double placement_bound =
      0;  // what no placement with as many slots can go below; loose: each expert has its best company there
  double max_over_mean = 1;        // load as routed
  double least_max_over_mean = 1;  // what no routing over the plan's copies can go below

  double gap() const { return routing_bound > 0 ? routed / routing_bound - 1 : 0; }
};

// For the first `batch` of the tokens. slots: [M][D], what the placement bound may use. aim: judge-slow or
// judge-fast. Errors: as judge.
Result<Certificate> certify(const Plan& plan, const Trace& trace, const JudgeTokens& tokens,
                            const Cluster& cluster, Aim aim, std::int64_t batch,
                            std::span<const std::vector<int>> slots, ThreadPool& pool);

// [M][D] the copies that each device holds: the slots of a plan that takes what it takes.
std::vector<std::vector<int>> held_slots(const Plan& plan);

// What a plan is worth on the tokens that its search kept apart (choose_sequences), beside the default
// placement under the same exchange.
struct PlanWorth {
  Aim aim = Aim::kJudgeSlow;
  Certificate bounds;
  double value = 0;          // the yardstick's, mean over layers
  double default_value = 0;  // of contiguous experts without copies
  double noise = 0;          // of the difference: twice the standard error of its mean over layers

  bool worth_it() const { return default_value - value > noise; }
};
// aim: judge-slow or judge-fast. Errors: as judge.
Result<PlanWorth> worth_of(const Plan& plan, const Trace& trace, const Cluster& cluster, Aim aim,
                           std::int64_t batch, std::uint64_t seed, ThreadPool& pool);

}  // namespace grace
