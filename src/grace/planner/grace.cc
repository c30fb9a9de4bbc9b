// The published method (GRACE-MoE, arXiv 2509.25041) with its defaults: two levels, r at the knee of the
// whole model's curve unless it is given, dynamic replication.
#include <fmt/format.h>

#include "grace/planner/strategy.h"
#include "grace/replication/replication.h"

namespace grace {

StrategyOutput grace_layers(const StrategyInput& input) {
  StrategyOutput output;
  const std::size_t num_layers = input.stats.size();
  // 1. Group without size bounds: the same for every r.
  std::vector<TwoLevels> levels(num_layers);
  input.pool.for_each(num_layers,
                      [&](std::size_t m, int) { levels[m] = two_levels(input.stats[m], input.cluster); });
  // 2. Choose r.
  double r = input.options.r;
  if (r < 0) {
    output.knee = knee_curve(input.stats, levels, input.cluster, input.pool);
    r = output.knee[knee_of(output.knee)].r;
  }
  output.provenance = {{"r", fmt::format("{}", r)}, {"r_from", input.options.r < 0 ? "knee" : "option"}};
  // 3. Hold sizes by r, 4. copy what is hot.
  output.layers.resize(num_layers);
  input.pool.for_each(num_layers, [&](std::size_t m, int) {
    LayerPlan& layer = output.layers[m];
    layer.primaries_of_device = device_groups(input.stats[m], input.cluster, levels[m], r);
    replicate_dynamic(input.stats[m], input.cluster, layer);
  });
  return output;
}

}  // namespace grace
