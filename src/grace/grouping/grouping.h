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

// Spectral clustering (Ng, Jordan & Weiss, 2001) of the sub-matrix of `experts` into k groups, sizes free but
// none empty when experts.size() >= k: symmetric normalised Laplacian, the k smallest eigenvectors, rows
// normalised, k-means from deterministic farthest-point seeds. The first seed is free in the method: up to 64
// experts are tried by descending degree, and the start whose groups keep most affinity over random groups of
// their sizes wins; ties to the lower id. No affinity at all (an
// all-zero layer): contiguous blocks. With fewer experts than k: one each, the rest empty. On tie-free input
// the groups and their order do not depend on how experts are numbered. REQUIRES: k >= 1.
Grouping spectral_groups(const LayerStats& stats, std::span<const ExpertId> experts, int k);

struct SizeBounds {
  int lowest = 0;
  int highest = 0;
};
// [max(1, m - d), m + d] with m = floor(n / k), d = max(1, round(m * r)); r = 0 gives floor(n/k) to
// ceil(n/k). Widened where n cannot be met otherwise. REQUIRES: num_groups >= 1, r >= 0.
SizeBounds size_bounds(int num_experts, int num_groups, double r);

// Moves experts until every group's size is inside bounds. An oversized group keeps the experts of highest
// affinity to the group; overflow, by descending load, goes to the group with room whose affinity sum it
// raises most; then groups below the minimum take the weakest-affinity experts of groups above it. Ties to
// the lower id. REQUIRES: k * lowest <= experts.size() <= k * highest.
Grouping controlled_sizes(const LayerStats& stats, std::span<const ExpertId> experts, Grouping groups, int k,
                          SizeBounds bounds);
// The same with bounds of its own for each group, [k]. REQUIRES: the sums of lowest and highest enclose
// experts.size().
Grouping controlled_sizes(const LayerStats& stats, std::span<const ExpertId> experts, Grouping groups,
                          std::span<const SizeBounds> bounds_of_group);

// Blocks of E/D experts in ascending order (the first E mod D devices hold one more), [D][...]. What a device
// has no slot for goes to the device with room that holds fewest. REQUIRES: the slots hold E experts.
std::vector<std::vector<ExpertId>> contiguous_groups(int num_experts, const Cluster& cluster);

// What both levels of the published grouping know before sizes are held by r: computed once, used for every
// r.
struct NodeGroup {
  std::vector<ExpertId> experts;  // ascending
  Grouping group_of_expert;       // device by local index, sizes free
};
struct TwoLevels {
  std::vector<NodeGroup>
      nodes;  // [N], or empty for a layer without affinity, which falls back to contiguous_groups
};
enum class NodeSizes {
  kFree,   // within the node's slots, but at least one expert per device where E >= D
  kEqual,  // as many experts for each device everywhere, rounded down or up, within the slots
};
// Nodes by spectral clustering, their sizes held as said; then spectral clustering inside each node. Where
// nodes or devices differ in capacity, the larger group goes to the larger one. REQUIRES: the slots hold E
// experts.
TwoLevels two_levels(const LayerStats& stats, const Cluster& cluster, NodeSizes sizes = NodeSizes::kFree);
// An r that bounds no group of devices: only slots do, and that none is empty where E >= D.
inline constexpr double kNoSizeBound = 1e6;
// The experts of each device, [D][...], ascending, with sizes inside a node held by r and by each device's
// slots.
std::vector<std::vector<ExpertId>> device_groups(const LayerStats& stats, const Cluster& cluster,
                                                 const TwoLevels& levels, double r);

// The published two levels in one call: device_groups of two_levels.
std::vector<std::vector<ExpertId>> hierarchical_groups(const LayerStats& stats, const Cluster& cluster,
                                                       double r);

// One level, as Occult groups (arXiv 2505.13345): spectral clustering into D groups of E/D experts, rounded
// down or up and within the slots; then the groups are laid on nodes so that what fires together shares one:
// spectral clustering of the groups into nodes, then changes of places that keep more affinity inside nodes,
// the best first, until none does. [D][...], ascending. A layer without affinity: contiguous_groups. Ties to
// the lower id. REQUIRES: the slots hold E experts.
std::vector<std::vector<ExpertId>> uniform_groups(const LayerStats& stats, const Cluster& cluster);

// A point of the (S, U) curve: S = sqrt(mean over devices of (|C_d| - m)^2) with m = floor(n / L) of the
// device's node, U = affinity kept.
struct KneePoint {
  double r = 0;
  double size_deviation = 0;  // S, mean over layers
  double affinity_kept = 0;   // U, mean over layers
};
// For r in 0, 0.05, .. 0.5, over all layers.
std::vector<KneePoint> knee_curve(std::span<const LayerStats> layers, const Cluster& cluster,
                                  ThreadPool& pool);
// The same where the two levels of each layer are known already. REQUIRES: levels.size() == layers.size().
std::vector<KneePoint> knee_curve(std::span<const LayerStats> layers, std::span<const TwoLevels> levels,
                                  const Cluster& cluster, ThreadPool& pool);
// The index of the point farthest above the chord of the normalised curve (sorted by S); ties, and a curve
// without extent, to the lower r. A point below the chord gives up balance for nothing and is never the knee.
// REQUIRES: curve is not empty.
std::size_t knee_of(std::span<const KneePoint> curve);

}  // namespace grace
