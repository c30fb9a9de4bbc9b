// What a layer's tokens choose and its exchange sends, for the simulation's slow twin: written down.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "grace/cluster/cluster.h"
#include "grace/plan/plan.h"
#include "grace/trace/trace.h"

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

// A token's choices, held to the partners of its best: those outside give way, one by one, to the best
// partner that is free.
inline std::vector<std::uint16_t> held_choices(const Trace& trace, const Plan& plan, std::size_t m,
                                               std::int64_t token) {
  const MoeOrdinal layer(static_cast<std::int32_t>(m));
  const auto free = trace.choices(token, layer);
  std::vector<std::uint16_t> choices(free.begin(), free.end());
  const auto& partners = plan.layers[m].partners_of_expert;
  int best = -1;
  float most = -1;
  for (std::size_t k = 0; k < choices.size() && !partners.empty(); ++k) {
    const float weight = trace.weights(token, layer).empty() ? 0 : trace.weights(token, layer)[k];
    if (choices[k] == kNotRouted || weight <= most) continue;
    best = choices[k];
    most = weight;
  }
  if (best < 0) return choices;
  const std::vector<ExpertId>& allowed = partners[static_cast<std::size_t>(best)];
  std::set<int> taken(choices.begin(), choices.end());
  for (std::uint16_t& choice : choices) {
    bool stays = choice == best || choice == kNotRouted;
    for (const ExpertId partner : allowed) stays = stays || partner.value == choice;
    for (const ExpertId partner : allowed)
      if (!stays && taken.insert(partner.value).second) {
        choice = static_cast<std::uint16_t>(partner.value);
        stays = true;
      }
  }
  return choices;
}

}  // namespace grace::slow
