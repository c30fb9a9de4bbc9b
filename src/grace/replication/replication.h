// Load -> copies of hot experts, one rule per file.
#pragma once

#include <vector>

#include "grace/affinity/affinity.h"
#include "grace/base/ids.h"
#include "grace/plan/plan.h"

namespace grace {

// Dynamic replication (DR) of GRACE-MoE. rho = heaviest group's load / mean; n = min(max(1, floor(rho)), D -
// 1). Hot = the shortest prefix of the heaviest group's experts by descending load whose sum exceeds W_max *
// n / (1 + n); each is copied to the n least-loaded devices with a free slot. Predicted loads conserve: the
// hot load W_r is spread as W_r / (n + 1) over the heavy device and its n hosts; an expert that slots leave
// with fewer hosts spreads its own load over those it has. Ties to the lower id. A layer with no load, or one
// device, gets no copies. Sets replicas_of_device and predicted_load of `layer`, whose primaries are given.
// cluster.device(d).slots bounds what a device holds.
void replicate_dynamic(const LayerStats& stats, const Cluster& cluster, LayerPlan& layer);

}  // namespace grace
