// Plans as other engines hold them: in every layer the same number of slots on every device, and the logical
// expert of each.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/result.h"
#include "grace/cluster/cluster.h"
#include "grace/plan/plan.h"

namespace grace {

// A slot without an expert: placements that are read may have some, what is written never.
inline constexpr std::int32_t kEmptySlot = -1;

// Slot p of a layer is on device p / (P / D).
struct SlotMap {
  int num_experts = 0;                                    // E
  int num_devices = 0;                                    // D
  std::vector<int> decoder_layers;                        // [M]: the decoder layer of each moe ordinal
  std::vector<std::vector<std::int32_t>> expert_of_slot;  // [M][P], logical ids

  int num_slots() const {
    return expert_of_slot.empty() ? 0 : static_cast<int>(expert_of_slot.front().size());
  }
  int slots_per_device() const { return num_devices == 0 ? 0 : num_slots() / num_devices; }
  // Slots of one layer on one device.
  std::span<const std::int32_t> slots_of(std::size_t layer, DeviceId device) const {
    const auto each = static_cast<std::size_t>(slots_per_device());
    return std::span(expert_of_slot[layer]).subspan(device.idx() * each, each);
  }
  bool operator==(const SlotMap&) const = default;
};

// Ways in which it is none, a line each, at most 20: rows of unequal length, P that D does not divide, ids
// outside [0, E), an expert without a slot. Second copies on one device are no violation: engines write them.
// Nor are empty slots.
std::vector<std::string> violations(const SlotMap& map);

bool has_empty_slots(const SlotMap& map);
// Slots that hold what their device holds already.
std::int64_t second_copies(const SlotMap& map);

// What evening out a plan costs.
struct Padding {
  int slots_per_device = 0;  // S
  std::int64_t added = 0;    // copies beyond the plan's, over all layers
  std::int64_t empty = 0;    // of those, slots that had to repeat an expert that their device holds already
  double memory_factor = 1;  // slots over the plan's copies
};
struct EvenPlan {
  SlotMap slots;
  Padding padding;
};
// Every device of every layer gets as many slots as the fullest one holds, or `slots_per_device` where that
// is given. The next spare slot takes the expert with the largest load a copy (ties to fewer copies, then the
// lower id) that a device with a spare slot lacks, on the least loaded of those devices (ties to the lower);
// only a device that holds every expert repeats one. loads [M][E], or empty: each plan layer's predicted
// loads shared among its experts. Slots of a device are in ascending order of expert, but where `before` has
// the same shape an expert that stays on its device keeps its slot. Errors: invalid_input where
// slots_per_device is less than the fullest device holds, or more than kMaxExperts.
// REQUIRES: violations(plan) is empty.
Result<EvenPlan> even_out(const Plan& plan, std::span<const std::vector<std::int64_t>> loads,
                          int slots_per_device = 0, const SlotMap* before = nullptr);

// The plan that the map is: the first slot of an expert is its primary; a second copy on a device is dropped,
// and counted in `dropped`. Routed by `tar`. Nothing is known of loads, so each expert counts as one
// assignment. devices_per_node: [N], adding up to D. REQUIRES: violations(map) is empty.
Plan plan_of(const SlotMap& map, std::string model, std::vector<int> devices_per_node,
             int* dropped = nullptr);

// Predicted loads as if an expert's load were shared equally by its copies. loads: [M][E].
void predict_equal_shares(std::span<const std::vector<std::int64_t>> loads, Plan& plan);

}  // namespace grace
