// Plain expert parallelism: experts in ascending order over the devices, whatever the tokens do.
#include "grace/planner/strategy.h"

namespace grace {

StrategyOutput vanilla_layers(const StrategyInput& input) {
  StrategyOutput output;
  for (const LayerStats& stats : input.stats) {
    LayerPlan layer;
    layer.primaries_of_device = contiguous_groups(stats.num_experts, input.cluster);
    layer.replicas_of_device.resize(layer.primaries_of_device.size());
    for (const std::vector<ExpertId>& group : layer.primaries_of_device) {
      std::int64_t load = 0;
      for (const ExpertId e : group) load += stats.load[e.idx()];
      layer.predicted_load.push_back(static_cast<double>(load));
    }
    output.layers.push_back(std::move(layer));
  }
  return output;
}

}  // namespace grace
