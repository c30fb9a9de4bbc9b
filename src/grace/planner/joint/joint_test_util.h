// What the tests of the search share: random problems, a routed batch counted by hand, real routing data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/rng.h"
#include "grace/cluster/cluster.h"
#include "grace/planner/joint/routed_state.h"
#include "grace/planner/joint/search_tokens.h"
#include "grace/trace/trace.h"

namespace grace::joint {

inline Cluster cluster_of(const std::vector<std::size_t>& devices_per_node) {
  Cluster cluster;
  cluster.name = "test";
  for (const std::size_t devices : devices_per_node) cluster.devices_of_node.emplace_back(devices);
  cluster.between_devices = {4e9, 5e-6};
  cluster.between_nodes = {3e9, 2e-5};
  cluster.flops_per_s = 1e14;
  cluster.memory_bytes_per_s = 1e12;
  return cluster;
}

// 1 to 3 nodes of 1 to 3 devices.
inline Cluster random_cluster(Rng& rng) {
  std::vector<std::size_t> nodes(1 + rng.below(3));
  for (std::size_t& devices : nodes) devices = 1 + rng.below(3);
  return cluster_of(nodes);
}

// One layer of tokens that choose at most top_k of the experts, low ids more often, neighbours together.
inline Trace random_trace(Rng& rng, int num_tokens, int num_experts, int top_k) {
  Trace trace;
  trace.model = "random";
  trace.num_experts = num_experts;
  trace.experts_per_token = top_k;
  trace.decoder_layers = {0};
  trace.sequence_offsets = {0};
  const auto n = static_cast<std::uint64_t>(num_experts);
  for (int t = 0; t < num_tokens; ++t) {
    std::vector<std::uint16_t> chosen;
    const std::uint64_t first = rng.below(1 + rng.below(n));
    for (int k = 0; k < top_k; ++k) {
      const std::uint64_t e = rng.below(3) == 0 ? rng.below(n) : (first + rng.below(4)) % n;
      const bool again = std::ranges::find(chosen, static_cast<std::uint16_t>(e)) != chosen.end();
      chosen.push_back(again ? kNotRouted : static_cast<std::uint16_t>(e));
    }
    trace.topk_ids.insert(trace.topk_ids.end(), chosen.begin(), chosen.end());
    if (t % 16 == 15 || t + 1 == num_tokens) trace.sequence_offsets.push_back(t + 1);
  }
  return trace;
}

inline SearchTokens all_tokens(const Trace& trace, int num_devices, std::uint64_t seed) {
  return sample_tokens(trace, MoeOrdinal(0), num_devices, static_cast<std::size_t>(trace.num_tokens()),
                       Rng(seed));
}

// [D] slots that hold every expert, with up to `extra` more on each device.
inline std::vector<int> random_slots(Rng& rng, int num_experts, int num_devices, int extra) {
  std::vector<int> slots(static_cast<std::size_t>(num_devices));
  for (int& s : slots) s = static_cast<int>(rng.below(static_cast<std::uint64_t>(extra) + 1));
  for (int e = 0; e < num_experts; ++e) ++slots[static_cast<std::size_t>(e % num_devices)];
  return slots;
}

// Every expert somewhere, then copies at random while there is room.
inline Hosts random_hosts(Rng& rng, int num_experts, std::span<const int> slots) {
  const std::size_t devices = slots.size();
  Hosts hosts(static_cast<std::size_t>(num_experts) * devices, 0);
  std::vector<std::size_t> free;
  for (std::size_t d = 0; d < devices; ++d) free.insert(free.end(), static_cast<std::size_t>(slots[d]), d);
  rng.shuffle(std::span(free));
  for (std::size_t e = 0; e < static_cast<std::size_t>(num_experts); ++e) {
    hosts[e * devices + free.back()] = 1;
    free.pop_back();
  }
  for (const std::size_t d : free) {
    if (rng.below(4) == 0) continue;
    hosts[rng.below(static_cast<std::uint64_t>(num_experts)) * devices + d] = 1;
  }
  return hosts;
}

// The plan of one layer with these hosts; the lowest device has the primary.
inline LayerPlan layer_of(const Hosts& hosts, std::size_t devices, const CoverCosts& cover) {
  LayerPlan layer;
  layer.primaries_of_device.resize(devices);
  layer.replicas_of_device.resize(devices);
  layer.predicted_load.assign(devices, 1);
  layer.cover = cover;
  for (std::size_t e = 0; e < hosts.size() / devices; ++e) {
    bool first = true;
    for (std::size_t d = 0; d < devices; ++d) {
      if (hosts[e * devices + d] == 0) continue;
      (first ? layer.primaries_of_device : layer.replicas_of_device)[d].push_back(
          ExpertId(static_cast<std::int32_t>(e)));
      first = false;
    }
  }
  return layer;
}

// x, y and the load of a routing, written down token by token.
struct Routed {
  std::int64_t x = 0, y = 0;
  std::vector<std::int64_t> load;  // [D]
  double value(const Weights& weights, std::size_t tokens) const {
    const double mean = static_cast<double>(std::accumulate(load.begin(), load.end(), std::int64_t{0})) /
                        static_cast<double>(load.size());
    const double most = static_cast<double>(*std::ranges::max_element(load));
    return (weights.node * static_cast<double>(x) + weights.device * static_cast<double>(y)) /
               static_cast<double>(tokens) +
           weights.load * (mean > 0 ? most / mean : 1);
  }
};
inline void add_routed(const Cluster& cluster, std::size_t source, std::span<const std::int32_t> device_of,
                       Routed& routed) {
  routed.load.resize(static_cast<std::size_t>(cluster.num_devices()), 0);
  const DeviceId own(static_cast<std::int32_t>(source));
  std::vector<std::int32_t> devices(device_of.begin(), device_of.end());
  for (const std::int32_t d : devices) ++routed.load[static_cast<std::size_t>(d)];
  std::ranges::sort(devices);
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  for (int n = 0; n < cluster.num_nodes(); ++n) {
    const std::int32_t first = cluster.first_device_of(NodeId(n)).value;
    const int size = cluster.devices_in(NodeId(n));
    const std::int32_t entry = first + cluster.local_index_of(own) % size;
    bool used = false;
    for (const std::int32_t d : devices) {
      if (d < first || d >= first + size) continue;
      used = true;
      routed.y += d == entry ? 0 : 1;
    }
    routed.x += used && cluster.node_of(own).value != n ? 1 : 0;
  }
}

// The layers of shared routing data, one file after the other, uint8 in C order; empty where it is absent.
inline Trace real_trace(const std::string& model, const std::vector<std::string>& names, int num_experts) {
  const std::filesystem::path folder =
      std::filesystem::path(GRACE_SOURCE_DIR "/../shared/data/routing") / model;
  Trace trace;
  trace.model = model;
  trace.num_experts = num_experts;
  trace.sequence_offsets = {0};
  for (const std::string& name : names) {
    std::ifstream ids(folder / (name + ".topk_ids.npy"), std::ios::binary);
    std::ifstream sequences(folder / (name + ".sequences.json"));
    if (!ids || !sequences) return {};
    const std::string bytes((std::istreambuf_iterator<char>(ids)), std::istreambuf_iterator<char>());
    const std::string text((std::istreambuf_iterator<char>(sequences)), std::istreambuf_iterator<char>());
    const std::size_t data = 10 + static_cast<std::uint8_t>(bytes.at(8)) +
                             std::size_t{256} * static_cast<std::uint8_t>(bytes.at(9));
    std::vector<int> shape;
    for (std::size_t at = bytes.find('('); bytes[at] != ')'; at = bytes.find_first_of(",)", at + 1))
      if (const std::size_t digit = bytes.find_first_of("0123456789)", at); bytes[digit] != ')')
        shape.push_back(std::stoi(bytes.substr(digit)));
    trace.decoder_layers.resize(static_cast<std::size_t>(shape.at(1)));
    trace.experts_per_token = shape.at(2);
    for (std::size_t i = data; i < bytes.size(); ++i)
      trace.topk_ids.push_back(static_cast<std::uint8_t>(bytes[i]));
    for (std::size_t at = text.find("sequence_lengths"); text[at] != ']';
         at = text.find_first_of(",]", at + 1))
      trace.sequence_offsets.push_back(trace.sequence_offsets.back() +
                                       std::stoll(text.substr(text.find_first_of("0123456789", at))));
  }
  std::iota(trace.decoder_layers.begin(), trace.decoder_layers.end(), 1);
  return trace;
}
inline Trace deepseek_trace() { return real_trace("deepseek-v2-lite", {"intent", "law"}, 64); }

}  // namespace grace::joint
