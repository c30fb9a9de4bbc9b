// Nodes first, then the devices of each node (GRACE-MoE, arXiv 2509.25041). What r does not change is
// computed once.
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "grace/base/check.h"
#include "grace/grouping/grouping.h"

namespace grace {
namespace {

// Copies that fit, of at most n experts.
int capacity_of(const Device& device, int n) { return device.slots > 0 ? std::min(device.slots, n) : n; }

std::vector<int> capacities_in(const std::vector<Device>& devices, int n) {
  std::vector<int> capacities;
  for (const Device& device : devices) capacities.push_back(capacity_of(device, n));
  return capacities;
}

// Renumbers groups so that the larger one has the larger capacity; ties keep their order, and so do equal
// capacities.
void match_capacities(Grouping& groups, const std::vector<int>& capacities) {
  if (std::ranges::adjacent_find(capacities, std::ranges::not_equal_to()) == capacities.end()) return;
  std::vector<int> sizes(capacities.size(), 0);
  for (const int g : groups) ++sizes[static_cast<std::size_t>(g)];
  const auto by_descending = [](const std::vector<int>& keys) {
    std::vector<std::size_t> order(keys.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(
        order, [&](std::size_t a, std::size_t b) { return keys[a] != keys[b] ? keys[a] > keys[b] : a < b; });
    return order;
  };
  const std::vector<std::size_t> group_order = by_descending(sizes);
  const std::vector<std::size_t> place_order = by_descending(capacities);
  std::vector<int> place_of_group(capacities.size());
  for (std::size_t rank = 0; rank < group_order.size(); ++rank)
    place_of_group[group_order[rank]] = static_cast<int>(place_order[rank]);
  for (int& g : groups) g = place_of_group[static_cast<std::size_t>(g)];
}

// Nodes: free within their slots, but at least one expert per device where there are as many experts as
// devices.
std::vector<SizeBounds> node_bounds(const Cluster& cluster, int num_experts) {
  const bool enough = num_experts >= cluster.num_devices();
  std::vector<SizeBounds> bounds;
  for (const std::vector<Device>& devices : cluster.devices_of_node) {
    const std::vector<int> capacities = capacities_in(devices, num_experts);
    bounds.push_back({enough ? static_cast<int>(devices.size()) : 0,
                      std::min(num_experts, std::accumulate(capacities.begin(), capacities.end(), 0))});
  }
  return bounds;
}

// Devices of one node: the bounds of r, cut to the slots; where the cut leaves too little room, the others
// take more.
std::vector<SizeBounds> bounds_in_node(const std::vector<Device>& devices, int n, double r) {
  const SizeBounds common = size_bounds(n, static_cast<int>(devices.size()), r);
  const std::vector<int> capacities = capacities_in(devices, n);
  std::vector<SizeBounds> bounds;
  int room = 0;
  for (const int capacity : capacities) {
    bounds.push_back({std::min(common.lowest, capacity), std::min(common.highest, capacity)});
    room += bounds.back().highest;
  }
  while (room < n) {
    std::size_t tightest = bounds.size();
    for (std::size_t d = 0; d < bounds.size(); ++d) {
      if (bounds[d].highest < capacities[d] &&
          (tightest == bounds.size() || bounds[d].highest < bounds[tightest].highest))
        tightest = d;
    }
    GRACE_CHECK(tightest < bounds.size(), "the slots of the node do not hold its experts");
    ++bounds[tightest].highest;
    ++room;
  }
  return bounds;
}

bool has_affinity(const LayerStats& stats) {
  return std::ranges::any_of(stats.affinity, [](std::int64_t count) { return count != 0; });
}

}  // namespace

TwoLevels two_levels(const LayerStats& stats, const Cluster& cluster) {
  TwoLevels levels;
  if (!has_affinity(stats)) return levels;
  std::vector<ExpertId> experts;
  for (int e = 0; e < stats.num_experts; ++e) experts.push_back(ExpertId(e));
  std::vector<int> capacities;
  for (const std::vector<Device>& devices : cluster.devices_of_node) {
    const std::vector<int> in_node = capacities_in(devices, stats.num_experts);
    capacities.push_back(std::accumulate(in_node.begin(), in_node.end(), 0));
  }
  Grouping node_of_expert = spectral_groups(stats, experts, cluster.num_nodes());
  match_capacities(node_of_expert, capacities);
  const std::vector<SizeBounds> bounds = node_bounds(cluster, stats.num_experts);
  node_of_expert = controlled_sizes(stats, experts, std::move(node_of_expert), bounds);

  levels.nodes.resize(cluster.devices_of_node.size());
  for (const ExpertId e : experts)
    levels.nodes[static_cast<std::size_t>(node_of_expert[e.idx()])].experts.push_back(e);
  for (std::size_t node = 0; node < levels.nodes.size(); ++node) {
    NodeGroup& group = levels.nodes[node];
    const std::vector<Device>& devices = cluster.devices_of_node[node];
    group.group_of_expert = spectral_groups(stats, group.experts, static_cast<int>(devices.size()));
    match_capacities(group.group_of_expert, capacities_in(devices, static_cast<int>(group.experts.size())));
  }
  return levels;
}

std::vector<std::vector<ExpertId>> device_groups(const LayerStats& stats, const Cluster& cluster,
                                                 const TwoLevels& levels, double r) {
  if (levels.nodes.empty()) return contiguous_groups(stats.num_experts, cluster);
  std::vector<std::vector<ExpertId>> groups;
  for (std::size_t node = 0; node < levels.nodes.size(); ++node) {
    const NodeGroup& group = levels.nodes[node];
    const std::vector<Device>& devices = cluster.devices_of_node[node];
    const std::vector<SizeBounds> bounds = bounds_in_node(devices, static_cast<int>(group.experts.size()), r);
    const Grouping local = controlled_sizes(stats, group.experts, group.group_of_expert, bounds);
    const std::size_t first = groups.size();
    groups.resize(first + devices.size());
    for (std::size_t i = 0; i < local.size(); ++i)
      groups[first + static_cast<std::size_t>(local[i])].push_back(group.experts[i]);
  }
  return groups;
}

std::vector<std::vector<ExpertId>> hierarchical_groups(const LayerStats& stats, const Cluster& cluster,
                                                       double r) {
  return device_groups(stats, cluster, two_levels(stats, cluster), r);
}

}  // namespace grace
