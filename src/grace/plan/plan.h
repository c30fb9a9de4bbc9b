// The answer as data: which device holds which copies of which experts, and what the routing needs to know.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/ids.h"
#include "grace/base/result.h"
#include "grace/cluster/cluster.h"

namespace grace {

// What routing by cover and price pays, in one unit: for each node a token enters beyond its own, for each device it is forwarded to inside a node (its own
// device and the one it enters a node by are free), and for each assignment on a device.
struct CoverCosts {
  double node = 0;
  double device = 0;
  std::vector<double> price;  // [D], or empty: no device is dearer than another
  bool operator==(const CoverCosts&) const = default;
};

// One MoE layer. Every expert has one primary copy; further copies are replicas, never two of one expert on a device.
struct LayerPlan {
  std::vector<std::vector<ExpertId>> primaries_of_device;  // [D], each ascending: the groups
  std::vector<std::vector<ExpertId>> replicas_of_device;   // [D], each ascending
  std::vector<double> predicted_load;                      // [D], assignments expected on each device; WRR weighs by 1/load
  CoverCosts cover = {};                                   // what the policy `cover` pays; other policies ignore it
  // The experts that a token whose best expert is e may choose besides it, the best partners first: [E][T], or empty, and the gate is free. A gate that
  // is held to them (C2R, arXiv 2504.01337) chooses other experts than the model's own: the text changes.
  std::vector<std::vector<ExpertId>> partners_of_expert = {};

  // Devices that hold a copy of each expert, [E][copies], the primary's first, replicas ascending.
  // REQUIRES: every expert is in [0, num_experts).
  std::vector<std::vector<DeviceId>> hosts_of_expert(int num_experts) const;
  // Primaries and replicas on one device, ascending.
  std::vector<ExpertId> experts_on(DeviceId device) const;
  bool operator==(const LayerPlan&) const = default;
};

struct Plan {
  std::string model;
  int num_experts = 0;
  std::vector<int> decoder_layers;    // [M]: the decoder layer of each moe ordinal
  std::vector<int> devices_per_node;  // [N]
  std::string strategy;               // "vanilla", "grace", ...
  std::string routing = "tar";        // a policy of the routing room
  std::vector<LayerPlan> layers;      // [M]
  std::map<std::string, std::string> provenance;  // options, seed, trace hash, program version
  std::map<std::string, double> figures;          // predicted; names end in _insample or _heldout

  // Whether some layer holds the gate to partners, so that the model computes something else.
  bool is_lossy() const;
  int num_moe_layers() const { return static_cast<int>(layers.size()); }
  int num_devices() const;
  // Copies device holds in its fullest layer.
  int max_slots(DeviceId device) const;
  bool operator==(const Plan&) const = default;
};

// Contiguous blocks of E/D experts (the first E mod D devices hold one more), no replicas: plain expert parallelism.
// Nothing is known of loads, so each expert counts as one assignment. REQUIRES: num_experts >= 1.
Plan vanilla_plan(std::string model, int num_experts, std::vector<int> decoder_layers, const Cluster& cluster);

// Ways in which the plan is not one, a line each, at most 100: `layer 3: expert 17 has no copy`. Empty when it is sound. Layers are moe ordinals and all
// numbers count from 0. The second form adds what the cluster demands: as many devices in as many nodes, and no more copies than slots.
std::vector<std::string> violations(const Plan& plan);
std::vector<std::string> violations(const Plan& plan, const Cluster& cluster);

// The JSON file of docs/formats/plan.md; what is written twice from the same plan has the same bytes.
// Errors: io; invalid_input with the first of violations(plan), or the place that does not parse.
Result<Plan> read_plan(const std::filesystem::path& path);
// The same from memory; `place` stands for the path in messages.
Result<Plan> parse_plan(std::string_view text, std::string_view place);
Status write_plan(const std::filesystem::path& path, const Plan& plan);

// Gives the plan those of the decoder layers that it lacks, each placed as vanilla_plan does. Returns them, ascending. What the plan has stays, also where it
// does not fit. REQUIRES: decoder_layers are ascending; the plan is sound and for as many devices as the cluster has.
std::vector<int> cover_layers(Plan& plan, const std::vector<int>& decoder_layers, const Cluster& cluster);

// Errors: invalid_input when the plan is for another number of experts or MoE layers, or other decoder layers. `what` names the model in the message.
Status check_fits(const Plan& plan, int num_experts, const std::vector<int>& decoder_layers, std::string_view what);


// Errors: invalid_input where an expert has fewer partners than a token chooses experts besides its best.
Status check_partners(const Plan& plan, int experts_per_token);

}  // namespace grace
