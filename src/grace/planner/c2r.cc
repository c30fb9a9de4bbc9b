// Uniform groups by affinity, and the gate held to the partners of a token's best expert, in the manner of
// C2R (arXiv 2504.01337): fewer devices a token, and another text.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "grace/planner/strategy.h"
#include "grace/replication/replication.h"

namespace grace {
namespace {

// Each expert's `count` partners by how often both are chosen, the most first, ties to the lower id.
std::vector<std::vector<ExpertId>> partners_of(const LayerStats& stats, std::size_t count) {
  std::vector<std::vector<ExpertId>> partners;
  for (int e = 0; e < stats.num_experts; ++e) {
    std::vector<ExpertId>& others = partners.emplace_back();
    for (int other = 0; other < stats.num_experts; ++other)
      if (other != e) others.push_back(ExpertId(other));
    const auto together = [&](ExpertId other) { return stats.between(ExpertId(e), other); };
    std::ranges::stable_sort(others, std::ranges::greater(), together);
    others.resize(count);
  }
  return partners;
}

}  // namespace

StrategyOutput c2r_layers(const StrategyInput& input) {
  const int count =
      partners_for(input.options.partners, input.plan.num_experts, input.plan.experts_per_token);
  StrategyOutput output;
  output.layers.resize(input.stats.size());
  input.pool.for_each(input.stats.size(), [&](std::size_t m, int) {
    LayerPlan& layer = output.layers[m];
    layer.primaries_of_device = uniform_groups(input.stats[m], input.cluster);
    replicate_nothing(input.stats[m], layer);
    // A lone expert has no partner to be held to.
    if (count > 0) layer.partners_of_expert = partners_of(input.stats[m], static_cast<std::size_t>(count));
  });
  output.provenance = {{"partners", fmt::format("{}", count)}};
  return output;
}

}  // namespace grace
