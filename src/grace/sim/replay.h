// Replays a whole trace through a plan, batch after batch, in the runtime's order: what the engine will send
// and compute, without running it.
#pragma once

#include <cstdint>
#include <vector>

#include "grace/base/result.h"
#include "grace/base/thread_pool.h"
#include "grace/cluster/cluster.h"
#include "grace/cost/cost.h"
#include "grace/plan/plan.h"
#include "grace/trace/trace.h"

namespace grace {

// The published workload, in place of a trace's own sequences where prefill is above 0: one batch of prompts
// of `prefill` tokens, then `decode` new ones of each, the last of which is never fed. Prompt p is the
// trace's p-th sequence that has tokens, and both begin anew where they end: what `grace bench` makes of a
// trace.
struct Workload {
  int prefill = 0;
  int decode = 1;
};

struct ReplayOptions {
  int batch = 0;  // sequences that run together, over all devices; 0: all of them
  Dispatch dispatch = Dispatch::kPerDevice;
  Combine combine = Combine::kExact;
  std::int64_t bytes_per_vector = 0;  // payload of one vector: hidden size times bytes_per_value
  Workload workload = {};
};

// One MoE layer over the whole trace. Steps in which the layer has no assignment count in neither mean.
struct LayerReplay {
  LayerTraffic traffic;           // summed over steps
  std::int64_t steps = 0;         // with an assignment
  double mean_max_over_mean = 1;  // of the load over devices, mean over steps
  double mean_load_deviation = 0;
};

struct Replay {
  std::vector<LayerReplay> layers;  // [M]
  std::int64_t steps = 0;           // forward passes, all batches together
};

// The workload: each `batch` consecutive sequences are one static batch, its i-th sequence on device i mod D.
// Step 0 of a batch feeds the prompts of each device's sequences, in order; every later step one decoded
// token of each sequence that has one left (the trace's rows beyond the prompt: a generation of n new tokens
// feeds n - 1). One router per device and layer lives through the whole trace. Same result at any thread
// count. Errors: invalid_input when plan, cluster and trace disagree, the plan's routing policy is
// unknown, or a workload has no batch, no decode, or a trace without tokens. REQUIRES: violations(trace) is
// empty.
Result<Replay> replay(const Trace& trace, const Plan& plan, const Cluster& cluster,
                      const ReplayOptions& options, ThreadPool& pool);

}  // namespace grace
