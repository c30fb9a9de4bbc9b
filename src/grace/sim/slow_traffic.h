// What a layer's exchange sends, for the simulation's slow twin: written down by sender and receiver.
#pragma once

#include <algorithm>
#include <map>
#include <utility>

#include "grace/cluster/cluster.h"

namespace grace::slow {

using Sent = std::map<std::pair<int, int>, double>;  // from, to -> vectors; what stays on a device too

inline void pad(Sent& sent, int num_devices) {
  double longest = 0;
  for (const auto& [ends, vectors] : sent)
    if (ends.first != ends.second) longest = std::max(longest, vectors);
  for (int from = 0; from < num_devices; ++from)
    for (int to = 0; to < num_devices; ++to) sent[{from, to}] = longest;
}

// Vectors of the busiest node, and into the busiest device inside its node.
inline std::pair<double, double> busiest(const Sent& sent, const Cluster& cluster) {
  std::map<std::pair<bool, int>, double> of_node;  // outwards, node
  std::map<int, double> into_device;
  double cross = 0, intra = 0;
  for (const auto& [ends, vectors] : sent) {
    const auto& [from, to] = ends;
    if (from == to) continue;
    const int sender = cluster.node_of(DeviceId(from)).value, receiver = cluster.node_of(DeviceId(to)).value;
    if (sender == receiver) {
      intra = std::max(intra, into_device[to] += vectors);
    } else {
      cross = std::max(cross, of_node[{true, sender}] += vectors);
      cross = std::max(cross, of_node[{false, receiver}] += vectors);
    }
  }
  return {cross, intra};
}

}  // namespace grace::slow
