// DeepSeek's EPLB: looks at loads alone, fills every slot it is given.
#include "grace/replication/eplb.h"

#include <fmt/format.h>

#include <numeric>

#include "grace/planner/strategy.h"

namespace grace {
namespace {

StrategyOutput eplb_by(const StrategyInput& input, EplbLevels levels) {
  StrategyOutput output;
  const std::size_t num_layers = input.stats.size();
  std::vector<int> moved(num_layers, 0);
  output.layers.resize(num_layers);
  input.pool.for_each(num_layers, [&](std::size_t m, int) {
    EplbLayer made = eplb_layer(input.stats[m].load, input.cluster, input.slots[m], levels);
    output.layers[m] = std::move(made.layer);
    moved[m] = made.second_copies_moved;
  });
  output.provenance = {
      {"eplb", levels == EplbLevels::kHierarchical ? "hierarchical" : "flat"},
      {"second_copies_moved", fmt::format("{}", std::accumulate(moved.begin(), moved.end(), 0))}};
  return output;
}

}  // namespace

StrategyOutput eplb_layers(const StrategyInput& input) {
  // Nothing is known of expert groups, so each expert is one: they divide where nodes take as many each.
  const bool divides = input.stats.front().num_experts % input.cluster.num_nodes() == 0;
  return eplb_by(input, divides ? EplbLevels::kHierarchical : EplbLevels::kFlat);
}

StrategyOutput eplb_flat_layers(const StrategyInput& input) { return eplb_by(input, EplbLevels::kFlat); }

}  // namespace grace
