// Affinity -> groups: a partition of the experts of one layer, one file per algorithm.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grace/affinity/affinity.h"
#include "grace/base/ids.h"
#include "grace/cluster/cluster.h"

namespace grace {

// group_of_expert[e] in [0, k), for the experts named in `experts` in that order.
using Grouping = std::vector<int>;

// Spectral clustering (Ng, Jordan & Weiss, 2001) of the sub-matrix of `experts` into k groups, sizes free but none empty when experts.size() >= k: symmetric normalised
// Laplacian, the k smallest eigenvectors, rows normalised, k-means from deterministic farthest-point seeds; ties to the lower id. No affinity at all
// (an all-zero layer): contiguous blocks. With fewer experts than k: one each, the rest empty.
Grouping spectral_groups(const LayerStats& stats, std::span<const ExpertId> experts, int k);

struct SizeBounds {
  int lowest = 0;
  int highest = 0;
};
// [max(1, m - d), m + d] with m = floor(n / k), d = max(1, round(m * r)); r = 0 gives floor(n/k) to ceil(n/k). Widened where n cannot be met otherwise.
SizeBounds size_bounds(int num_experts, int num_groups, double r);

// Moves experts until every group's size is inside bounds. An oversized group keeps the experts of highest affinity to the group; overflow, by descending load, goes to
// the group with room whose affinity sum it raises most; then groups below the minimum take the weakest-affinity experts of groups above it. Ties to the lower id.
// REQUIRES: k * lowest <= experts.size() <= k * highest.
Grouping controlled_sizes(const LayerStats& stats, std::span<const ExpertId> experts, Grouping groups, int k, SizeBounds bounds);

// The published two levels: nodes by spectral clustering with free sizes (free, but at least one expert per device where E >= D), then devices inside each node with sizes held by r.
// Returns the experts of each device, [D][...], ascending.
std::vector<std::vector<ExpertId>> hierarchical_groups(const LayerStats& stats, const Cluster& cluster, double r);

// A point of the (S, U) curve: S = sqrt(mean over devices of (|C_d| - m)^2), U = affinity kept.
struct KneePoint {
  double r = 0;
  double size_deviation = 0;  // S, mean over layers
  double affinity_kept = 0;   // U, mean over layers
};
// For r in 0, 0.05, .. 0.5, over all layers.
std::vector<KneePoint> knee_curve(std::span<const LayerStats> layers, const Cluster& cluster, ThreadPool& pool);
// The index of the point farthest from the chord of the normalised curve (sorted by S); ties, and a curve without extent, to the lower r.
std::size_t knee_of(std::span<const KneePoint> curve);

}  // namespace grace
