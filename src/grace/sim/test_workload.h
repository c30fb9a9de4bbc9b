// Random clusters, traces and plans for the room's tests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "grace/base/rng.h"
#include "grace/cluster/cluster.h"
#include "grace/plan/plan.h"
#include "grace/sim/simulate.h"
#include "grace/trace/trace.h"

namespace grace {

inline Cluster cluster_of(std::vector<std::size_t> devices_per_node) {
  Cluster cluster;
  for (const std::size_t devices : devices_per_node) cluster.devices_of_node.emplace_back(devices);
  return cluster;
}

// Distinct random choices per token and layer, some not routed; unequal sequences, some without prompt and
// some without decoded tokens.
inline Trace random_trace(Rng& rng, int num_sequences) {
  Trace trace;
  trace.model = "test";
  trace.num_experts = 4 + static_cast<int>(rng.below(20));
  trace.experts_per_token = 1 + static_cast<int>(rng.below(4));
  trace.decoder_layers = {1, 2, 5};
  trace.phase = Phase::kMixed;
  trace.sequence_offsets = {0};
  for (int s = 0; s < num_sequences; ++s) {
    const auto prompt = static_cast<std::int64_t>(rng.below(9));
    const auto decoded = static_cast<std::int64_t>(rng.below(6));
    trace.prompt_lengths.push_back(prompt);
    trace.sequence_offsets.push_back(trace.sequence_offsets.back() + prompt + decoded);
  }
  std::vector<std::uint16_t> experts(static_cast<std::size_t>(trace.num_experts));
  std::iota(experts.begin(), experts.end(), std::uint16_t{0});
  for (std::int64_t row = 0; row < trace.num_tokens() * trace.num_moe_layers(); ++row) {
    rng.shuffle(std::span(experts));
    for (int k = 0; k < trace.experts_per_token; ++k)
      trace.topk_ids.push_back(rng.below(15) == 0 ? kNotRouted : experts[static_cast<std::size_t>(k)]);
  }
  return trace;
}

// The vanilla plan with random replicas and predicted loads.
inline Plan random_plan(Rng& rng, const Trace& trace, const Cluster& cluster) {
  Plan plan = vanilla_plan(trace.model, trace.num_experts, trace.decoder_layers, cluster);
  plan.routing = rng.below(2) == 0 ? "tar" : "wrr";
  for (LayerPlan& layer : plan.layers) {
    layer.predicted_load.clear();
    for (std::size_t d = 0; d < layer.primaries_of_device.size(); ++d) {
      layer.predicted_load.push_back(static_cast<double>(1 + rng.below(100)));
      for (int e = 0; e < trace.num_experts; ++e)
        if (std::ranges::find(layer.primaries_of_device[d], ExpertId(e)) ==
                layer.primaries_of_device[d].end() &&
            rng.below(3) == 0)
          layer.replicas_of_device[d].push_back(ExpertId(e));
    }
  }
  return plan;
}

// Round figures, so that a mistake shows; devices of three speeds.
inline Cluster timed_cluster(const std::vector<std::size_t>& devices_per_node) {
  Cluster cluster = cluster_of(devices_per_node);
  cluster.between_devices = {1e9, 2e-6};
  cluster.between_nodes = {1e8, 7e-6};
  cluster.flops_per_s = 1e10;
  cluster.memory_bytes_per_s = 1e9;
  int d = 0;
  for (auto& of_node : cluster.devices_of_node)
    for (Device& device : of_node) device.speed = 0.5 * (1 + d++ % 3);
  return cluster;
}

// Dense, MoE, MoE, dense windowed, MoE: the random traces' decoder layers 1, 2 and 5 among others.
inline ModelPrice some_model() {
  ModelPrice model;
  const PartPrice attention{3e5, 40, 90, 17, 2e5};
  for (const bool is_moe : {false, true, true, false, true})
    model.layers.push_back({attention, {is_moe ? 1e4 : 7e5, 0, 0, 0, is_moe ? 3e3 : 4e5}, is_moe, !is_moe});
  model.head = {5e6, 0, 0, 0, 3e6};
  model.window = 4;
  return model;
}

inline SimulateOptions some_options(int batch, Dispatch dispatch) {
  return {.batch = batch,
          .dispatch = dispatch,
          .combine = Combine::kReduced,
          .workload = {},
          .sizes = {.hidden = 32, .expert_ffn = 16},
          .model = some_model(),
          .recorded_decode_passes = 2,
          .progress = {}};
}

struct Case {
  explicit Case(std::uint64_t seed) {
    Rng rng(seed);
    const std::vector<std::vector<std::size_t>> shapes{{1}, {2, 2}, {1, 3}, {4, 4}, {3, 1, 2}};
    cluster = timed_cluster(shapes[rng.below(shapes.size())]);
    trace = random_trace(rng, static_cast<int>(rng.below(23)));
    plan = random_plan(rng, trace, cluster);
    batch = static_cast<int>(rng.below(9));
  }
  Cluster cluster;
  Trace trace;
  Plan plan;
  int batch;
};

}  // namespace grace
