// Plain expert parallelism: experts in ascending order over the devices, whatever the tokens do.
#include "grace/planner/strategy.h"
#include "grace/replication/replication.h"

namespace grace {

StrategyOutput vanilla_layers(const StrategyInput& input) {
  StrategyOutput output;
  for (const LayerStats& stats : input.stats) {
    LayerPlan& layer = output.layers.emplace_back();
    layer.primaries_of_device = contiguous_groups(stats.num_experts, input.cluster);
    replicate_nothing(stats, layer);
  }
  return output;
}

}  // namespace grace
