// For tests: the plans that must not change an answer.
#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "grace/base/rng.h"
#include "grace/cluster/cluster.h"
#include "grace/plan/plan.h"
#include "grace/runtime/tiny_model.h"

namespace grace {

inline std::vector<int> all_layers(int count) {
  std::vector<int> layers;
  for (int l = 0; l < count; ++l) layers.push_back(l);
  return layers;
}

// As parse_cluster, or nodes of sizes of their own: `1+3`.
inline Cluster cluster_of(const std::string& spec) {
  if (spec.find('+') == std::string::npos) return parse_cluster(spec).value();
  Cluster cluster = parse_cluster("1x1").value();
  cluster.name = spec;
  cluster.devices_of_node.clear();
  std::istringstream sizes(spec);
  for (std::string size; std::getline(sizes, size, '+');)
    cluster.devices_of_node.emplace_back(static_cast<std::size_t>(std::stoi(size)));
  return cluster;
}

inline Plan vanilla(const TinyModel& model, const Cluster& cluster) {
  return vanilla_plan("tiny", model.shape().experts, all_layers(model.shape().layers), cluster);
}

// Experts dealt to devices in a random order, another in each layer.
inline Plan shuffled(const TinyModel& model, const Cluster& cluster, std::uint64_t seed) {
  Plan plan = vanilla(model, cluster);
  Rng rng(seed);
  for (LayerPlan& layer : plan.layers) {
    std::vector<ExpertId> experts;
    for (int e = 0; e < model.shape().experts; ++e) experts.push_back(ExpertId{e});
    rng.shuffle(std::span(experts));
    std::size_t next = 0;
    for (auto& group : layer.primaries_of_device) {
      for (ExpertId& expert : group) expert = experts[next++];
      std::ranges::sort(group);
    }
  }
  return plan;
}

// Every expert a second time, on the device after its primary's.
inline Plan doubled(const TinyModel& model, const Cluster& cluster, std::uint64_t seed) {
  Plan plan = shuffled(model, cluster, seed);
  const std::size_t devices = static_cast<std::size_t>(cluster.num_devices());
  for (LayerPlan& layer : plan.layers) {
    for (std::size_t d = 0; devices > 1 && d < devices; ++d)
      layer.replicas_of_device[(d + 1) % devices] = layer.primaries_of_device[d];
    for (std::size_t d = 0; d < devices; ++d) layer.predicted_load[d] = 1.0 + static_cast<double>(d);
  }
  return plan;
}

}  // namespace grace
