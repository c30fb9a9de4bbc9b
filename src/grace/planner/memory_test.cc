// Budgets in bytes: what they hold, how they are spread over layers, and what they are refused for.
#include <gmock/gmock.h>

#include <algorithm>

#include "grace/planner/budget.h"
#include "grace/planner/planner.h"
#include "grace/trace/synthetic.h"

namespace grace {
namespace {

using testing::HasSubstr;

constexpr LayerSizes kSizes{64, 32, 2, 2};

Trace uneven_trace(ThreadPool& pool) {
  SyntheticOptions options;
  options.moe_layers = 3;
  options.num_experts = 16;
  options.experts_per_token = 3;
  options.tokens = 1200;
  options.sequence_length = 60;
  options.zipf = 0.9;
  return synthetic_trace(options, pool).value();
}

PlanOptions budget_of(double experts, const char* strategy) {
  PlanOptions options;
  options.strategy = strategy;
  options.effort = 0.05;
  options.objective.sizes = kSizes;
  options.memory_bytes = experts * kSizes.expert_bytes();
  return options;
}

TEST(ABudgetInBytes, BoundsTheCopiesOfEachDeviceOverAllLayers) {
  ThreadPool pool(2);
  const Trace trace = uneven_trace(pool);
  const Cluster cluster = parse_cluster("2x2").value();
  for (const char* strategy : {"joint-slow", "eplb"})
    for (const double experts : {12.0, 14.5, 19.0, 48.0}) {
      SCOPED_TRACE(std::string(strategy) + " " + std::to_string(experts));
      const Plan plan = make_plan(trace, cluster, budget_of(experts, strategy), pool).value().plan;
      for (std::size_t d = 0; d < 4; ++d) {
        std::size_t copies = 0;
        for (const LayerPlan& layer : plan.layers)
          copies += layer.primaries_of_device[d].size() + layer.replicas_of_device[d].size();
        EXPECT_LE(static_cast<double>(copies), experts) << "device " << d;
      }
    }
}

TEST(ABudgetInBytes, ThatCannotHoldEveryExpertOnceIsRefused) {
  ThreadPool pool(1);
  const Trace trace = uneven_trace(pool);
  const Cluster cluster = parse_cluster("2x2").value();
  const auto refused = make_plan(trace, cluster, budget_of(11, "joint-slow"), pool);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("room for 11 experts a device"));
  PlanOptions unknown = budget_of(20, "joint-slow");
  unknown.objective.sizes = {};
  EXPECT_THAT(make_plan(trace, cluster, unknown, pool).error().message, HasSubstr("needs the model's sizes"));
}

TEST(ABudgetInBytes, OfTheClusterCountsWhereNoOtherIsGiven) {
  ThreadPool pool(1);
  const Trace trace = uneven_trace(pool);
  Cluster cluster = parse_cluster("2x2").value();
  cluster.devices_of_node[1][0].memory_bytes = 12 * kSizes.expert_bytes();
  const Plan plan = make_plan(trace, cluster, budget_of(0, "joint-slow"), pool).value().plan;
  const std::vector<int> fullest = fullest_devices(plan);
  EXPECT_EQ(*std::ranges::max_element(fullest), 4);
}

}  // namespace
}  // namespace grace
