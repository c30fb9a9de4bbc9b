// Load -> copies and their devices by DeepSeek's EPLB (github.com/deepseek-ai/EPLB, eplb.py at d52c72d),
// which looks at load alone: exactly as published, and for devices that differ.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grace/base/ids.h"
#include "grace/cluster/cluster.h"
#include "grace/plan/plan.h"

namespace grace {

// The arguments of the published rebalance_experts.
struct EplbShape {
  int num_physical = 0;  // copies of one layer in all, P
  int num_groups = 1;    // of experts that stay on one node together
  int num_nodes = 1;
  int num_devices = 1;
};

// physical_to_logical, [P]: slot p is on device p / (P / num_devices). Hierarchical where num_groups is a
// multiple of num_nodes, else flat, which is one group on one node:
// 1. expert groups onto nodes, largest first, the lightest node with room;
// 2. inside each node, the next copy to the expert with the largest load / copies;
// 3. copies onto the node's devices, largest first, the lightest device with room.
// Ties: to the lower index, which is the group in 1, the expert's position in its node (in the order of 1) in
// 2, the copy (originals first, then as they were made) and the device in 3. As published, one item for each
// place keeps its order whatever it weighs, all loads equal to zero give every further copy to the first
// expert, and a device may hold an expert twice. The published code counts in float32; this one in double, so
// that counts above 2^24 keep their order.
// REQUIRES: load [E] is not negative and not empty, num_physical >= E, num_devices divides num_physical,
// num_groups divides E, num_nodes divides num_devices.
std::vector<ExpertId> eplb_physical_to_logical(std::span<const std::int64_t> load, const EplbShape& shape);

enum class EplbLevels { kHierarchical, kFlat };

struct EplbLayer {
  LayerPlan layer;              // the primary is the copy on the lowest device
  int second_copies_moved = 0;  // that the published rule would have put beside a copy of the same expert
};

// The same rule for devices of unequal slots in nodes of unequal size: a node takes experts in proportion to
// its slots (largest remainder, ties to the lower node), the lightest node is the one with least load per
// device, and every slot is filled unless its device holds all experts. Each expert is a group of its own.
// What the rule puts on a device that has the expert already goes elsewhere by spread_second_copies.
// Predicted loads share an expert's load equally among its copies. A layer without load is laid out as if all
// experts had the same. REQUIRES: load [E] is not negative and not empty; slots [D] are in [1, E] and hold E
// experts.
EplbLayer eplb_layer(std::span<const std::int64_t> load, const Cluster& cluster, std::span<const int> slots,
                     EplbLevels levels);

// Leaves at most one copy of an expert on each device. A second copy changes places with a copy on another
// device of the same domain that lacks the expert, the change that leaves the fuller of the two lightest
// (ties to the lower device, then the lower expert); where there is none, its slot takes a copy of the expert
// with the largest load / copies that the device lacks (ties to fewer copies, then the lower expert). Then
// free slots are filled by that last rule too. Returns how many second copies there were. domain_of_device:
// [D], copies change places inside a domain only. experts_of_device: [D][<= slots]. REQUIRES: every expert of
// [0, E) is on some device; slots [D] are at least as many as the copies.
int spread_second_copies(std::span<const std::int64_t> load, std::span<const int> slots,
                         std::span<const int> domain_of_device,
                         std::vector<std::vector<ExpertId>>& experts_of_device);

}  // namespace grace
