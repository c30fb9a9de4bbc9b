// A certificate tells the truth about a plan: bounds below what it does, worth against the default placement.
#include "grace/planner/certify.h"

#include <gmock/gmock.h>

#include <numeric>

#include "grace/planner/planner.h"
#include "grace/trace/synthetic.h"

namespace grace {
namespace {

Trace clustered_trace(ThreadPool& pool, double strength) {
  SyntheticOptions options;
  options.moe_layers = 4;
  options.num_experts = 16;
  options.experts_per_token = 4;
  options.tokens = 4000;
  options.sequence_length = 50;
  options.clusters = 4;
  options.strength = strength;
  options.zipf = strength > 0 ? 0.6 : 0;
  options.topic_strength = strength;
  return synthetic_trace(options, pool).value();
}

class ACertificate : public testing::TestWithParam<const char*> {};

TEST_P(ACertificate, BoundsWhatThePlanDoes) {
  ThreadPool pool(2);
  const Trace trace = clustered_trace(pool, 0.7);
  const Cluster cluster = parse_cluster("2x2").value();
  PlanOptions options;
  options.strategy = GetParam();
  options.effort = 0.1;
  options.slots = {6};
  const Plan plan = make_plan(trace, cluster, options, pool).value().plan;
  std::vector<int> all(static_cast<std::size_t>(trace.num_sequences()));
  std::iota(all.begin(), all.end(), 0);
  const JudgeTokens tokens = judge_tokens(trace, all, 4, 1);
  for (const Aim aim : {Aim::kJudgeSlow, Aim::kJudgeFast}) {
    const Certificate certificate = certify(plan, trace, tokens, cluster, aim, 1024, held_slots(plan), pool).value();
    EXPECT_LE(certificate.routing_bound, certificate.routed + 1e-9);
    EXPECT_LE(certificate.placement_bound, certificate.routing_bound + 1e-9);
    EXPECT_LE(certificate.least_max_over_mean, certificate.max_over_mean + 1e-9);
    EXPECT_GE(certificate.least_max_over_mean, 1 - 1e-9);
    EXPECT_GT(certificate.placement_bound, 0);
  }
}
INSTANTIATE_TEST_SUITE_P(Strategies, ACertificate,
                         testing::Values("vanilla", "grace", "eplb", "eplb-cover", "joint-slow", "joint-fast"));

TEST(ThePlansWorth, IsSeenWhereExpertsFireTogether) {
  ThreadPool pool(2);
  const Trace trace = clustered_trace(pool, 0.9);
  const Cluster cluster = parse_cluster("2x2").value();
  PlanOptions options;
  options.strategy = "joint-slow";
  options.effort = 0.1;
  const Plan plan = make_plan(trace, cluster, options, pool).value().plan;
  const PlanWorth worth = worth_of(plan, trace, cluster, Aim::kJudgeSlow, 1024, 0, pool).value();
  EXPECT_TRUE(worth.worth_it());
  EXPECT_LT(worth.value, worth.default_value);
}

TEST(ThePlansWorth, OfTheDefaultPlacementIsNothing) {
  ThreadPool pool(2);
  const Trace trace = clustered_trace(pool, 0.5);
  const Cluster cluster = parse_cluster("2x2").value();
  const Plan plan = make_plan(trace, cluster, {.strategy = "vanilla"}, pool).value().plan;
  const PlanWorth worth = worth_of(plan, trace, cluster, Aim::kJudgeSlow, 1024, 0, pool).value();
  EXPECT_FALSE(worth.worth_it());
  EXPECT_EQ(worth.value, worth.default_value);
  EXPECT_EQ(worth.noise, 0);
}

TEST(TheSequencesThatChoose, AreAFifthOrAllThereAre) {
  ThreadPool pool(1);
  const Trace trace = clustered_trace(pool, 0.5);
  EXPECT_EQ(choose_sequences(trace, 3).size(), 16U);
  const std::vector<int> one{0};
  EXPECT_EQ(choose_sequences(select_sequences(trace, one), 3), one);
}

}  // namespace
}  // namespace grace
