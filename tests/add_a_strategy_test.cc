// The worked example of docs/add-a-strategy.md, compiled from the page.
#include <gtest/gtest.h>

#include <numeric>

#include "grace/base/rng.h"
#include "grace/planner/strategy.h"

namespace grace {

StrategyOutput largest_first_layers(const StrategyInput& input);

namespace {

TEST(TheStrategyOfTheGuide, MakesSoundAndBalancedPlans) {
  const Cluster cluster = parse_cluster("2x2").value();
  ThreadPool pool(1);
  const Trace none;
  const PlanOptions options;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    LayerStats stats{16, {}, {}};
    for (int e = 0; e < 16; ++e) stats.load.push_back(static_cast<std::int64_t>(rng.below(1000)));
    const std::vector<LayerStats> layers = {stats};
    const std::vector<std::vector<int>> slots = {{16, 16, 16, 4}};
    const StrategyOutput made = largest_first_layers({layers, none, none, cluster, slots, 0, options, pool});
    Plan plan = vanilla_plan("m", 16, {0}, cluster);
    plan.layers = made.layers;
    plan.routing = made.routing;
    EXPECT_TRUE(violations(plan, cluster).empty());
    EXPECT_LE(plan.layers[0].primaries_of_device[3].size(), 4U);
    const double total =
        std::accumulate(plan.layers[0].predicted_load.begin(), plan.layers[0].predicted_load.end(), 0.0);
    EXPECT_DOUBLE_EQ(
        total, static_cast<double>(std::accumulate(stats.load.begin(), stats.load.end(), std::int64_t{0})));
  }
}

}  // namespace
}  // namespace grace
