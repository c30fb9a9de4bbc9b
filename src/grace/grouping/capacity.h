// Inside the grouping room: what slots and shapes allow.
#pragma once

#include <span>
#include <vector>

#include "grace/cluster/cluster.h"
#include "grace/grouping/grouping.h"

namespace grace::grouping {

// Copies that fit on each device, of at most n experts.
std::vector<int> capacities_in(std::span<const Device> devices, int n);

// Renumbers groups so that the larger one has the larger capacity; ties keep their order, and so do equal
// capacities.
void match_capacities(Grouping& groups, const std::vector<int>& capacities);

// Raises the lowest upper bounds, within the capacities, until n experts fit; ties to the lower group.
// REQUIRES: the capacities hold n.
void widen_to_hold(std::span<SizeBounds> bounds, const std::vector<int>& capacities, int n);

// The bounds of r for each of the devices that share n experts, cut to their slots; where the cut leaves too
// little room, the others take more.
std::vector<SizeBounds> bounds_within(std::span<const Device> devices, int n, double r);

bool has_affinity(const LayerStats& stats);

// ExpertId(0) .. ExpertId(num_experts - 1).
std::vector<ExpertId> all_experts(int num_experts);

}  // namespace grace::grouping
