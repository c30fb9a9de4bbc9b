// Real routing without the real model: MoE layers of true shape with random weights, whose gate takes its
// choices from a trace.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "grace/base/result.h"
#include "grace/runtime/engine.h"

namespace grace {

struct ReplaySource {
  Trace trace;         // its MoE layers are the model's; its sequences, in turn, those that are served
  int hidden = 0;      // H
  int expert_ffn = 0;  // F
  std::uint64_t seed = 0;
};

// What the engine says it is: no attention, no shared experts, every layer MoE.
ModelConfig config_of(const ReplaySource& source);

// An engine to measure with. Sequence slot s of rank r is served the routing of trace sequence (s D + r) mod
// S, from its begin again where it is too short; token ids do not matter. A token starts from a vector drawn
// by its row of the trace, and logits are a random projection of what the layers make of it: whoever adds in
// the same order says the same. Collective. `source` must outlive it. Errors: invalid_input when plan,
// cluster, transport and trace disagree (all ranks get it).
Result<std::unique_ptr<Engine>> make_replay_engine(const ReplaySource& source, const Plan& plan,
                                                   const Cluster& cluster, Transport& transport,
                                                   ThreadPool& pool, const EngineOptions& options);

}  // namespace grace
