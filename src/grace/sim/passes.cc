#include "grace/sim/passes.h"

#include <algorithm>
#include <string>
#include <utility>

namespace grace::sim {
namespace {

// The token at 0-based `position` of its sequence.
void feed(DeviceWork& work, std::int64_t token, std::int64_t position, int window) {
  const std::int64_t keys = position + 1;
  work.tokens.push_back(token);
  work.keys += static_cast<double>(keys);
  work.windowed_keys += static_cast<double>(window > 0 ? std::min<std::int64_t>(keys, window) : keys);
}

// The passes of the batch of sequences [begin, end).
std::vector<Pass> passes_of_batch(const Trace& trace, int begin, int end, std::size_t num_devices,
                                  int window) {
  std::vector<Pass> passes(1, {true, std::vector<DeviceWork>(num_devices)});
  for (int sequence = begin; sequence < end; ++sequence) {
    const std::size_t device = static_cast<std::size_t>(sequence - begin) % num_devices;
    const std::int64_t first = trace.sequence_offsets[static_cast<std::size_t>(sequence)];
    const std::int64_t last = trace.sequence_offsets[static_cast<std::size_t>(sequence) + 1];
    const std::int64_t decoded = std::min(first + trace.prompt_length(sequence), last);
    if (decoded > first) ++passes[0].devices[device].sequences;
    for (std::int64_t token = first; token < decoded; ++token)
      feed(passes[0].devices[device], token, token - first, window);
    for (std::int64_t token = decoded; token < last; ++token) {
      const auto pass = static_cast<std::size_t>(token - decoded) + 1;
      if (pass == passes.size()) passes.push_back({false, std::vector<DeviceWork>(num_devices)});
      feed(passes[pass].devices[device], token, token - first, window);
      ++passes[pass].devices[device].sequences;
    }
  }
  return passes;
}

}  // namespace

static_assert(kNotRouted == kNotChosen, "a trace's choices are routed as they are");

std::vector<Pass> passes_of(const Trace& trace, int batch, int num_devices, int window) {
  std::vector<Pass> passes;
  const int num_sequences = trace.num_sequences();
  const int stride = batch == 0 ? std::max(1, num_sequences) : batch;
  for (int begin = 0, end = 0; begin < num_sequences; begin = end) {
    end = stride < num_sequences - begin ? begin + stride : num_sequences;
    for (Pass& pass : passes_of_batch(trace, begin, end, static_cast<std::size_t>(num_devices), window))
      passes.push_back(std::move(pass));
  }
  return passes;
}

Status check_workload(const Trace& trace, const Plan& plan, const Cluster& cluster, int batch) {
  if (batch < 0) return invalid_input("batch " + std::to_string(batch) + " is below 0");
  GRACE_TRY(check_fits(plan, trace.num_experts, trace.decoder_layers, "trace of " + trace.model));
  const std::vector<std::string> faults = violations(plan, cluster);
  if (!faults.empty()) return invalid_input("plan: " + faults.front());
  return {};
}

Result<std::vector<std::unique_ptr<Router>>> make_routers(const Plan& plan, MoeOrdinal layer,
                                                          const Cluster& cluster) {
  std::vector<std::unique_ptr<Router>> routers;
  for (int device = 0; device < cluster.num_devices(); ++device)
    routers.push_back(GRACE_TRY(
        make_router(plan.routing, plan.layers[layer.idx()], plan.num_experts, cluster, DeviceId(device))));
  return routers;
}

}  // namespace grace::sim
