#include "grace/grouping/capacity.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "grace/base/check.h"

namespace grace::grouping {

std::vector<int> capacities_in(std::span<const Device> devices, int n) {
  std::vector<int> capacities;
  for (const Device& device : devices) capacities.push_back(device.slots > 0 ? std::min(device.slots, n) : n);
  return capacities;
}

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

void widen_to_hold(std::span<SizeBounds> bounds, const std::vector<int>& capacities, int n) {
  int room = 0;
  for (const SizeBounds& of_group : bounds) room += of_group.highest;
  for (; room < n; ++room) {
    std::size_t tightest = bounds.size();
    for (std::size_t g = 0; g < bounds.size(); ++g) {
      if (bounds[g].highest < capacities[g] &&
          (tightest == bounds.size() || bounds[g].highest < bounds[tightest].highest))
        tightest = g;
    }
    GRACE_CHECK(tightest < bounds.size(), "the slots do not hold the experts");
    ++bounds[tightest].highest;
  }
}

std::vector<SizeBounds> bounds_within(std::span<const Device> devices, int n, double r) {
  const SizeBounds common = size_bounds(n, static_cast<int>(devices.size()), r);
  const std::vector<int> capacities = capacities_in(devices, n);
  std::vector<SizeBounds> bounds;
  for (const int capacity : capacities)
    bounds.push_back({std::min(common.lowest, capacity), std::min(common.highest, capacity)});
  widen_to_hold(bounds, capacities, n);
  return bounds;
}

bool has_affinity(const LayerStats& stats) {
  return std::ranges::any_of(stats.affinity, [](std::int64_t count) { return count != 0; });
}

std::vector<ExpertId> all_experts(int num_experts) {
  std::vector<ExpertId> experts;
  for (int e = 0; e < num_experts; ++e) experts.push_back(ExpertId(e));
  return experts;
}

}  // namespace grace::grouping
