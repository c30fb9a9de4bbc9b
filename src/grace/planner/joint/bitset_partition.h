// Placement without copies: a local search over partitions whose moves cost a few popcounts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "grace/base/rng.h"

namespace grace::joint {

// Experts 0..n-1 over groups; groups belong to nodes. Value, to be lowered: node_weight * (token, node)
// touches + device_weight * (token, group) touches + load_weight * (max/mean load + kSpread * squared
// deviation of load/mean), all sums over tokens, the load term times their number.
struct PartitionProblem {
  std::size_t num_experts = 0;
  std::vector<std::uint16_t> experts;   // of token t: [begin[t], begin[t + 1]), distinct
  std::vector<std::uint32_t> begin{0};  // [T + 1]
  std::vector<double> load;             // [n] of each expert
  std::vector<int> capacity;            // [G]; their sum is at least n
  std::vector<int> node_of_group;       // [G], ascending from 0
  std::vector<double> base_load;        // [G] that is there already
  double node_weight = 0;
  double device_weight = 0;
  double load_weight = 0;

  std::size_t num_tokens() const { return begin.size() - 1; }
};
inline constexpr double kSpread = 0.5;

using Partition = std::vector<int>;  // [n] the group of each expert

// Simulated annealing of moves and swaps from `start`, `proposals` of them, then first-improvement until
// nothing helps or as many again are spent. REQUIRES: start respects the capacities. Returns the best found.
Partition anneal_partition(const PartitionProblem& problem, Partition start, std::size_t proposals, Rng rng);

// The value of a partition, counted anew; what the increments of the search must add up to.
double value_of(const PartitionProblem& problem, std::span<const int> partition);

// Heaviest first, each to the group with room that has the least load; ties to the lower id.
Partition packed_by_load(const PartitionProblem& problem);

}  // namespace grace::joint
