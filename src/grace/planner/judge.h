// What a plan does to tokens that had no part in making it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grace/base/ids.h"
#include "grace/base/result.h"
#include "grace/base/thread_pool.h"
#include "grace/cluster/cluster.h"
#include "grace/cost/evaluate.h"
#include "grace/plan/plan.h"
#include "grace/trace/trace.h"

namespace grace {

// Tokens in the order in which they are batched, each with the device it starts on.
struct JudgeTokens {
  std::vector<std::int64_t> rows;
  std::vector<DeviceId> source;
};
// All tokens of the given sequences, a sequence's on one device, sequences dealt to the devices round-robin
// in the order given; permuted by the seed.
JudgeTokens judge_tokens(const Trace& trace, std::span<const int> sequences, int num_devices,
                         std::uint64_t seed);

struct JudgeOptions {
  std::int64_t batch = 2048;  // tokens; the short last batch is dropped unless it is the only one
  Dispatch dispatch = Dispatch::kTwoStage;
  LayerSizes sizes = {};             // seconds are zero without
  std::int64_t feedback_every = 32;  // tokens of a source between two observations of the loads
};

// [M] The routers live through all batches. Errors: invalid_input when plan, cluster and trace disagree, or
// the routing policy is unknown.
Result<std::vector<Figures>> judge(const Plan& plan, const Trace& trace, const JudgeTokens& tokens,
                                   const Cluster& cluster, const JudgeOptions& options, ThreadPool& pool);

}  // namespace grace
