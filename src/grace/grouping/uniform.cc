// Groups of one size over all devices, laid on nodes afterwards: what a method that does not know nodes does.
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "grace/base/check.h"
#include "grace/grouping/capacity.h"
#include "grace/grouping/grouping.h"

namespace grace {
namespace {

// Groups as if they were experts: the affinity between two is the sum over their pairs.
LayerStats stats_of_groups(const LayerStats& stats, const Grouping& group_of_expert, std::size_t num_groups) {
  LayerStats groups;
  groups.num_experts = static_cast<int>(num_groups);
  groups.affinity.assign(num_groups * num_groups, 0);
  groups.load.assign(num_groups, 0);
  for (std::size_t i = 0; i < group_of_expert.size(); ++i) {
    const auto g = static_cast<std::size_t>(group_of_expert[i]);
    groups.load[g] += stats.load[i];
    for (std::size_t j = 0; j < group_of_expert.size(); ++j) {
      const auto h = static_cast<std::size_t>(group_of_expert[j]);
      if (g != h)
        groups.affinity[g * num_groups + h] +=
            stats.between(ExpertId(static_cast<std::int32_t>(i)), ExpertId(static_cast<std::int32_t>(j)));
    }
  }
  return groups;
}

// Which device has which group, and how much affinity each group has to each node.
class Seating {
 public:
  Seating(const Cluster& cluster, const LayerStats& groups, std::vector<std::size_t> device_of_group)
      : groups_(groups),
        device_of_group_(std::move(device_of_group)),
        num_nodes_(static_cast<std::size_t>(cluster.num_nodes())),
        to_node_(device_of_group_.size() * num_nodes_, 0) {
    for (int d = 0; d < cluster.num_devices(); ++d) node_of_.push_back(cluster.node_of(DeviceId(d)).idx());
    for (std::size_t g = 0; g < device_of_group_.size(); ++g) add(g, 1);
  }

  std::size_t device_of(std::size_t group) const { return device_of_group_[group]; }
  // Affinity inside nodes that two groups would add by changing places.
  std::int64_t gain(std::size_t a, std::size_t b) const {
    if (node_of(a) == node_of(b)) return 0;
    return to_node(a, node_of(b)) + to_node(b, node_of(a)) - to_node(a, node_of(a)) - to_node(b, node_of(b)) -
           2 * between(a, b);
  }
  void change_places(std::size_t a, std::size_t b) {
    add(a, -1);
    add(b, -1);
    std::swap(device_of_group_[a], device_of_group_[b]);
    add(a, 1);
    add(b, 1);
  }

 private:
  std::size_t node_of(std::size_t group) const { return node_of_[device_of_group_[group]]; }
  std::int64_t to_node(std::size_t group, std::size_t node) const {
    return to_node_[group * num_nodes_ + node];
  }
  std::int64_t between(std::size_t a, std::size_t b) const {
    return groups_.affinity[a * device_of_group_.size() + b];
  }
  void add(std::size_t group, std::int64_t sign) {
    for (std::size_t g = 0; g < device_of_group_.size(); ++g)
      to_node_[g * num_nodes_ + node_of(group)] += sign * between(g, group);
  }

  const LayerStats& groups_;
  std::vector<std::size_t> device_of_group_;  // [D]
  std::size_t num_nodes_;
  std::vector<std::size_t> node_of_;   // [D] of each device
  std::vector<std::int64_t> to_node_;  // [D, N] of each group
};

// Groups clustered into nodes; the identity where devices differ in capacity, so that each group keeps a
// device it fits on.
std::vector<std::size_t> first_seats(const Cluster& cluster, const LayerStats& groups,
                                     const std::vector<int>& capacities) {
  std::vector<std::size_t> device_of_group(capacities.size());
  std::iota(device_of_group.begin(), device_of_group.end(), std::size_t{0});
  if (std::ranges::adjacent_find(capacities, std::ranges::not_equal_to()) != capacities.end())
    return device_of_group;
  const std::vector<ExpertId> ids = grouping::all_experts(groups.num_experts);
  std::vector<SizeBounds> seats;
  std::vector<std::size_t> next_device;
  for (int node = 0; node < cluster.num_nodes(); ++node) {
    const int devices = cluster.devices_in(NodeId(node));
    seats.push_back({devices, devices});
    next_device.push_back(cluster.first_device_of(NodeId(node)).idx());
  }
  const Grouping node_of_group =
      controlled_sizes(groups, ids, spectral_groups(groups, ids, cluster.num_nodes()), seats);
  for (std::size_t g = 0; g < node_of_group.size(); ++g)
    device_of_group[g] = next_device[static_cast<std::size_t>(node_of_group[g])]++;
  return device_of_group;
}

// [D] the device of each group.
std::vector<std::size_t> lay_on_nodes(const Cluster& cluster, const LayerStats& groups,
                                      const std::vector<int>& sizes, const std::vector<int>& capacities) {
  Seating seating(cluster, groups, first_seats(cluster, groups, capacities));
  const auto fits = [&](std::size_t group, std::size_t device) { return sizes[group] <= capacities[device]; };
  for (;;) {
    std::int64_t most = 0;
    std::pair<std::size_t, std::size_t> best;
    for (std::size_t a = 0; a < sizes.size(); ++a) {
      for (std::size_t b = a + 1; b < sizes.size(); ++b) {
        const std::int64_t gain = seating.gain(a, b);
        if (gain <= most || !fits(a, seating.device_of(b)) || !fits(b, seating.device_of(a))) continue;
        most = gain;
        best = {a, b};
      }
    }
    if (most == 0) break;
    seating.change_places(best.first, best.second);
  }
  std::vector<std::size_t> device_of_group;
  for (std::size_t g = 0; g < sizes.size(); ++g) device_of_group.push_back(seating.device_of(g));
  return device_of_group;
}

}  // namespace

std::vector<std::vector<ExpertId>> uniform_groups(const LayerStats& stats, const Cluster& cluster) {
  if (!grouping::has_affinity(stats)) return contiguous_groups(stats.num_experts, cluster);
  std::vector<Device> devices;
  for (const std::vector<Device>& node : cluster.devices_of_node)
    devices.insert(devices.end(), node.begin(), node.end());
  const std::vector<ExpertId> experts = grouping::all_experts(stats.num_experts);
  const std::vector<int> capacities = grouping::capacities_in(devices, stats.num_experts);

  Grouping groups = spectral_groups(stats, experts, cluster.num_devices());
  grouping::match_capacities(groups, capacities);
  groups = controlled_sizes(stats, experts, std::move(groups),
                            grouping::bounds_within(devices, stats.num_experts, 0));
  std::vector<int> sizes(devices.size(), 0);
  for (const int g : groups) ++sizes[static_cast<std::size_t>(g)];
  const std::vector<std::size_t> device_of_group =
      lay_on_nodes(cluster, stats_of_groups(stats, groups, devices.size()), sizes, capacities);

  std::vector<std::vector<ExpertId>> experts_of_device(devices.size());
  for (const ExpertId e : experts)
    experts_of_device[device_of_group[static_cast<std::size_t>(groups[e.idx()])]].push_back(e);
  return experts_of_device;
}

}  // namespace grace
