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

// A pass with all prompts, and decode - 1 with one token of each.
std::vector<Pass> passes_of_workload(const Trace& trace, int batch, const Workload& workload,
                                     std::size_t num_devices, int window) {
  std::vector<int> with_tokens;
  for (int s = 0; s < trace.num_sequences(); ++s)
    if (trace.sequence_offsets[static_cast<std::size_t>(s) + 1] >
        trace.sequence_offsets[static_cast<std::size_t>(s)])
      with_tokens.push_back(s);
  const std::vector<DeviceWork> nothing(num_devices);
  std::vector<Pass> passes(static_cast<std::size_t>(workload.decode), {false, nothing});
  passes[0].prefill = true;
  for (std::size_t prompt = 0; prompt < static_cast<std::size_t>(batch); ++prompt) {
    const auto sequence = static_cast<std::size_t>(with_tokens[prompt % with_tokens.size()]);
    const std::int64_t first = trace.sequence_offsets[sequence];
    const std::int64_t length = trace.sequence_offsets[sequence + 1] - first;
    std::int64_t position = 0;
    for (Pass& pass : passes) {
      DeviceWork& work = pass.devices[prompt % pass.devices.size()];
      ++work.sequences;
      for (int i = 0; i < (pass.prefill ? workload.prefill : 1); ++i, ++position)
        feed(work, first + position % length, position, window);
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

std::vector<Pass> passes_of(const Trace& trace, int batch, const Workload& workload, int num_devices,
                            int window) {
  if (workload.prefill == 0) return passes_of(trace, batch, num_devices, window);
  return passes_of_workload(trace, batch, workload, static_cast<std::size_t>(num_devices), window);
}

Status check_workload(const Trace& trace, const Plan& plan, const Cluster& cluster, int batch,
                      const Workload& workload) {
  if (batch < 0) return invalid_input("batch " + std::to_string(batch) + " is below 0");
  GRACE_TRY(check_fits(plan, trace.num_experts, trace.decoder_layers, "trace of " + trace.model));
  const std::vector<std::string> faults = violations(plan, cluster);
  if (!faults.empty()) return invalid_input("plan: " + faults.front());
  GRACE_TRY(check_partners(plan, trace.experts_per_token));
  if (workload.prefill == 0) return {};
  const auto at_least_1 = [](const char* what, int value) -> Status {
    if (value >= 1) return {};
    return invalid_input(std::string(what) + " " + std::to_string(value) + " is below 1");
  };
  GRACE_TRY(at_least_1("prefill", workload.prefill));
  GRACE_TRY(at_least_1("decode", workload.decode));
  GRACE_TRY(at_least_1("a workload's batch", batch));
  if (trace.num_tokens() == 0) return invalid_input("trace of " + trace.model + ": it has no tokens");
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
