// The seam between make_plan and its strategies: one .cc each and one line in strategies().
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grace/affinity/affinity.h"
#include "grace/planner/planner.h"

namespace grace {

// What a strategy may look at. Everything outlives the call.
struct StrategyInput {
  std::span<const LayerStats> stats;  // [M], of the plan and the choose tokens together
  const Trace& plan;                  // what a search sees; empty where only loads are known
  const Trace& choose;                // what decides among its results; has tokens where plan has
  const Cluster& cluster;
  std::span<const std::vector<int>> slots;  // [M][D] copies a device may hold (PlanOptions::slots)
  int total_slots;  // a device's over all layers, where memory is what bounds it; else 0
  const PlanOptions& options;
  ThreadPool& pool;
};

struct StrategyOutput {
  std::vector<LayerPlan> layers;          // [M]
  std::string routing = "tar";            // a policy of the routing room
  std::vector<KneePoint> knee;            // as in PlanResult
  std::map<std::string, double> figures;  // added to what every plan predicts
  std::map<std::string, std::string>
      provenance;  // options it settled itself, added to what every plan records
};

struct Strategy {
  std::string_view name;
  bool needs_sizes = false;        // LayerSizes
  bool needs_coactivation = true;  // else the loads of `stats` are all it looks at
  // REQUIRES: the slots of the cluster hold every expert once. Same input, same output at any thread count.
  StrategyOutput (*make_layers)(const StrategyInput& input);
};

std::span<const Strategy> strategies();

StrategyOutput joint_layers(const StrategyInput& input);       // placement, copies, routing: layer time
StrategyOutput joint_slow_layers(const StrategyInput& input);  // the same for judge-slow
StrategyOutput joint_fast_layers(const StrategyInput& input);  // the same for judge-fast
StrategyOutput eplb_cover_layers(const StrategyInput& input);  // eplb's copies, routed by cover and price
StrategyOutput vanilla_layers(const StrategyInput& input);     // contiguous blocks, no copies
StrategyOutput grace_layers(const StrategyInput& input);  // two levels, sizes held by r, dynamic replication
StrategyOutput grace_uniform_layers(const StrategyInput& input);    // equal sizes at both levels, no copies
StrategyOutput grace_hg_layers(const StrategyInput& input);         // as grace, without copies
StrategyOutput grace_free_layers(const StrategyInput& input);       // as grace, device sizes free too
StrategyOutput grace_hg_fr_wrr_layers(const StrategyInput& input);  // as grace, one host a hot expert, wrr
StrategyOutput grace_hg_dr_wrr_layers(const StrategyInput& input);  // as grace, routed by wrr
StrategyOutput occult_layers(const StrategyInput& input);           // equal sizes at one level, no copies
StrategyOutput c2r_layers(const StrategyInput& input);   // as occult, and the gate held to partners: lossy
StrategyOutput eplb_layers(const StrategyInput& input);  // by load alone; by node where E % N == 0, else flat
StrategyOutput eplb_flat_layers(const StrategyInput& input);  // by load alone over all devices

}  // namespace grace
