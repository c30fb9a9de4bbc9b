// Load -> copies of hot experts, one rule per file.
#pragma once

#include <vector>

#include "grace/affinity/affinity.h"
#include "grace/base/ids.h"
#include "grace/plan/plan.h"

namespace grace {

// Which experts of the heaviest group count as hot first. Ties to the lower id.
enum class HotBy {
  kLoad,           // the most activated
  kCollaboration,  // those of most affinity to the other experts of their group
};

enum class PredictedLoads {
  kConserved,  // a hot expert's own load is shared evenly by its copies
  // As the paper prints it: W_p = W_max / (n + 1) more on each device that takes a copy, and W_max - W_r +
  // W_p on the heavy one, with W_r the load of what was copied. Their sum is not the load of the layer.
  kPublished,
};

// The published replication of the heaviest group, with what the paper varies.
struct ReplicationRule {
  // n, the devices each hot expert is copied to; 0: dynamic (DR), min(max(1, floor(rho)), D - 1) with rho =
  // heaviest group's load / mean. 1 is the paper's fixed replication (FR). At most D - 1 in any case.
  int num_hosts = 0;
  // The number of hot experts, at most the whole group; 0: the shortest prefix, by descending hot_by, whose
  // load exceeds W_max * n / (1 + n).
  int num_hot = 0;
  HotBy hot_by = HotBy::kLoad;
  PredictedLoads predicted = PredictedLoads::kConserved;
};

// Copies each hot expert of the heaviest group to the n least-loaded devices with a free slot. An expert that
// slots leave with fewer hosts spreads its load over those it has. Ties to the lower id. A layer with no
// load, or one device, gets no copies. Sets replicas_of_device and predicted_load of `layer`, whose primaries
// are given. cluster.device(d).slots bounds what a device holds. REQUIRES: num_hosts and num_hot not
// negative.
void replicate_heaviest_group(const LayerStats& stats, const Cluster& cluster, const ReplicationRule& rule,
                              LayerPlan& layer);

// Dynamic replication (DR) of GRACE-MoE: replicate_heaviest_group with the default rule. Predicted loads
// conserve: the hot load W_r is spread as W_r / (n + 1) over the heavy device and its n hosts where slots do
// not bind.
void replicate_dynamic(const LayerStats& stats, const Cluster& cluster, LayerPlan& layer);

// No copies: predicted_load is what the primaries of `layer` draw.
void replicate_nothing(const LayerStats& stats, LayerPlan& layer);

}  // namespace grace
