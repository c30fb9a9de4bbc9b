// Uniform groups by affinity and no copies, in the manner of Occult (arXiv 2505.13345).
#include "grace/planner/strategy.h"
#include "grace/replication/replication.h"

namespace grace {

StrategyOutput occult_layers(const StrategyInput& input) {
  StrategyOutput output;
  output.layers.resize(input.stats.size());
  input.pool.for_each(input.stats.size(), [&](std::size_t m, int) {
    LayerPlan& layer = output.layers[m];
    layer.primaries_of_device = uniform_groups(input.stats[m], input.cluster);
    replicate_nothing(input.stats[m], layer);
  });
  return output;
}

}  // namespace grace
