// Nodes first, then the devices of each node (GRACE-MoE, arXiv 2509.25041). What r does not change is
// computed once.
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "grace/base/check.h"
#include "grace/grouping/capacity.h"
#include "grace/grouping/grouping.h"

namespace grace {
namespace {

using grouping::capacities_in;

// [N] copies that fit on each node, of at most n experts for each device.
std::vector<int> node_capacities(const Cluster& cluster, int n) {
  std::vector<int> capacities;
  for (const std::vector<Device>& devices : cluster.devices_of_node) {
    const std::vector<int> in_node = capacities_in(devices, n);
    capacities.push_back(std::accumulate(in_node.begin(), in_node.end(), 0));
  }
  return capacities;
}

// Nodes: free within their slots, but at least one expert per device where there are as many experts as
// devices.
std::vector<SizeBounds> free_nodes(const Cluster& cluster, int num_experts) {
  const bool enough = num_experts >= cluster.num_devices();
  const std::vector<int> capacities = node_capacities(cluster, num_experts);
  std::vector<SizeBounds> bounds;
  for (std::size_t node = 0; node < capacities.size(); ++node)
    bounds.push_back({enough ? static_cast<int>(cluster.devices_of_node[node].size()) : 0,
                      std::min(num_experts, capacities[node])});
  return bounds;
}

// Nodes: as many experts for each device everywhere, within the slots.
std::vector<SizeBounds> equal_nodes(const Cluster& cluster, int num_experts) {
  const std::vector<int> capacities = node_capacities(cluster, num_experts);
  std::vector<SizeBounds> bounds;
  for (std::size_t node = 0; node < capacities.size(); ++node) {
    const auto share = static_cast<std::int64_t>(num_experts) *
                       static_cast<std::int64_t>(cluster.devices_of_node[node].size());
    const int lowest = static_cast<int>(share / cluster.num_devices());
    const int highest = lowest + (share % cluster.num_devices() > 0 ? 1 : 0);
    bounds.push_back({std::min(lowest, capacities[node]), std::min(highest, capacities[node])});
  }
  grouping::widen_to_hold(bounds, capacities, num_experts);
  return bounds;
}

}  // namespace

TwoLevels two_levels(const LayerStats& stats, const Cluster& cluster, NodeSizes sizes) {
  TwoLevels levels;
  if (!grouping::has_affinity(stats)) return levels;
  const std::vector<ExpertId> experts = grouping::all_experts(stats.num_experts);
  Grouping node_of_expert = spectral_groups(stats, experts, cluster.num_nodes());
  grouping::match_capacities(node_of_expert, node_capacities(cluster, stats.num_experts));
  const std::vector<SizeBounds> bounds = sizes == NodeSizes::kFree ? free_nodes(cluster, stats.num_experts)
                                                                   : equal_nodes(cluster, stats.num_experts);
  node_of_expert = controlled_sizes(stats, experts, std::move(node_of_expert), bounds);

  levels.nodes.resize(cluster.devices_of_node.size());
  for (const ExpertId e : experts)
    levels.nodes[static_cast<std::size_t>(node_of_expert[e.idx()])].experts.push_back(e);
  for (std::size_t node = 0; node < levels.nodes.size(); ++node) {
    NodeGroup& group = levels.nodes[node];
    const std::vector<Device>& devices = cluster.devices_of_node[node];
    group.group_of_expert = spectral_groups(stats, group.experts, static_cast<int>(devices.size()));
    grouping::match_capacities(group.group_of_expert,
                               capacities_in(devices, static_cast<int>(group.experts.size())));
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
    const std::vector<SizeBounds> bounds =
        grouping::bounds_within(devices, static_cast<int>(group.experts.size()), r);
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
