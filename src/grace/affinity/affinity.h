// Which experts fire together, and how often each fires, counted out of a trace.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grace/base/ids.h"
#include "grace/base/thread_pool.h"
#include "grace/trace/trace.h"

namespace grace {

// Counts of one MoE layer. affinity[i * E + j] = tokens that chose both i and j, symmetric, zero diagonal.
// load[e] = tokens that chose e.
struct LayerStats {
  int num_experts = 0;
  std::vector<std::int64_t> affinity;  // [E, E]
  std::vector<std::int64_t> load;      // [E]

  std::int64_t between(ExpertId a, ExpertId b) const {
    return affinity[a.idx() * static_cast<std::size_t>(num_experts) + b.idx()];
  }
};

// [M] layers. Choices that were not routed count nowhere. Same result at any thread count.
// REQUIRES: topk_ids is [T, M, K], each id below E or kNotRouted, no expert twice in one token's choices.
std::vector<LayerStats> count_layers(const Trace& trace, ThreadPool& pool);

// Sum of affinity inside the groups over the sum over all pairs (U of the published method); 1 when there is
// no pair at all. group_of_expert: [E].
double affinity_kept(const LayerStats& stats, std::span<const int> group_of_expert);

}  // namespace grace
