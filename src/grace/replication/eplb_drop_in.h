// DeepSeek's rebalance_experts (github.com/deepseek-ai/EPLB, eplb.py at d52c72d) as its callers know it:
// whole weights in, its three arrays out. For plans of our own see eplb.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grace/base/result.h"
#include "grace/base/thread_pool.h"

namespace grace {

// The arguments of rebalance_experts, and the shape of its weight.
struct EplbArguments {
  std::int64_t num_layers = 0;    // L
  std::int64_t num_experts = 0;   // E
  std::int64_t num_replicas = 0;  // P
  std::int64_t num_groups = 1;
  std::int64_t num_nodes = 1;
  std::int64_t num_gpus = 1;
};

// What rebalance_experts returns, row-major.
struct EplbMaps {
  std::int64_t most_copies = 0;                   // X
  std::vector<std::int64_t> physical_to_logical;  // [L, P]: slot p is on GPU p / (P / num_gpus)
  std::vector<std::int64_t> logical_to_physical;  // [L, E, X] in the order in which copies were made, then -1
  std::vector<std::int64_t> expert_count;         // [L, E]
  bool operator==(const EplbMaps&) const = default;
};

// Exactly as published, also where that puts an expert twice on a GPU: counts and sums are float32, ties go
// to the lower index. Equal to the original on weights without ties whose sums over a group float32 holds
// exactly (whole numbers below 2^24); beyond, sums may round otherwise than torch's. Copies of one expert
// always tie: the original leaves their order in logical_to_physical to torch's sort, here it is that of a
// stable one. weight: [L, E]. Same result at any thread count. Errors: invalid_input for NaN, and, in the
// words of the argument, for each assertion of the original: num_replicas divides among num_gpus and is at
// least E, num_gpus among num_nodes, E among num_groups; where num_nodes does not divide num_groups, as
// published, groups and nodes count as one.
Result<EplbMaps> eplb_rebalance(std::span<const float> weight, const EplbArguments& arguments,
                                ThreadPool& pool);
// The same of weights that are rounded to float32 first, as the original does.
Result<EplbMaps> eplb_rebalance(std::span<const double> weight, const EplbArguments& arguments,
                                ThreadPool& pool);

// The same copies, moved so that experts which tokens choose together share GPUs, and nodes: as long as
// something improves, two slots on different GPUs change places where that raises the kept co-activation and
// leaves no GPU with more than the fullest had (an expert's weight shared equally by its copies). So balance
// is never worse than without. Where expert groups stay on a node they still do. coactivation: [L, E, E],
// tokens that chose both; its diagonal does not count. Errors: also for values that are negative or not
// finite.
Result<EplbMaps> eplb_rebalance(std::span<const double> weight, std::span<const double> coactivation,
                                const EplbArguments& arguments, ThreadPool& pool);

// Co-activation that slots of one GPU keep: over pairs of experts, coactivation times the share of GPUs that
// both have among those they could both have (the copies of the rarer one); [L]. For tests and reports.
std::vector<double> eplb_coactivation_kept(const EplbMaps& maps, std::span<const double> coactivation,
                                           const EplbArguments& arguments);

}  // namespace grace
