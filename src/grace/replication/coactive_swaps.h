// Inside the replication room: copies that are placed already change places until experts chosen together sit
// together, and no device has more to do than the fullest had.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace grace {

struct SwapShape {
  std::size_t num_gpus = 1;
  std::size_t num_nodes = 1;  // of equally many GPUs
  bool within_nodes = false;  // nothing leaves its node
};

// [P]: the slot whose copy each slot takes. weight: [E], shared equally by an expert's copies. coactivation:
// [E, E], symmetric or not, diagonal ignored. expert_of_slot: [P], slot p on GPU p / (P / num_gpus).
// copies: [E]. Kept is, over pairs of slots, (A + A^T) / 2 over the copies of the rarer expert, once for
// sharing a GPU and once for sharing a node. First improvement in the order of slots, so that the result is
// the same everywhere. REQUIRES: num_gpus divides P, num_nodes divides num_gpus.
std::vector<std::size_t> coactive_order(std::span<const double> weight, std::span<const double> coactivation,
                                        std::span<const std::int64_t> expert_of_slot,
                                        std::span<const std::int64_t> copies, const SwapShape& shape);

}  // namespace grace
