// `joint` as a whole, through make_plan: the same plan everywhere, and what is odd.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "grace/planner/joint/joint_test_util.h"
#include "grace/planner/judge.h"
#include "grace/planner/planner.h"

namespace grace {
namespace {

using testing::HasSubstr;

PlanOptions options_of(std::string_view strategy, std::uint64_t seed = 0) {
  PlanOptions options;
  options.strategy = strategy;
  options.seed = seed;
  options.effort = 0.1;
  options.objective.sizes = {.hidden = 64, .expert_ffn = 96};
  return options;
}

Trace trace_of(std::uint64_t seed, int num_tokens, int num_experts, int top_k, int num_layers = 1) {
  Rng rng(seed);
  Trace trace = joint::random_trace(rng, num_tokens * num_layers, num_experts, top_k);
  trace.decoder_layers.clear();
  for (int m = 0; m < num_layers; ++m) trace.decoder_layers.push_back(m);
  trace.sequence_offsets = {0};
  for (int t = 0; t < num_tokens; t += 16) trace.sequence_offsets.push_back(std::min(t + 16, num_tokens));
  return trace;
}

Figures judged(const Plan& plan, const Trace& trace, const Cluster& cluster, const LayerSizes& sizes = {}) {
  std::vector<int> sequences(static_cast<std::size_t>(trace.num_sequences()));
  std::iota(sequences.begin(), sequences.end(), 0);
  ThreadPool pool(1);
  const JudgeTokens tokens = judge_tokens(trace, sequences, cluster.num_devices(), 3);
  JudgeOptions options;
  options.sizes = sizes;
  return mean_of(judge(plan, trace, tokens, cluster, options, pool).value());
}

// Sound, every number of it a number, and it routes.
void expect_sound(const Result<PlanResult>& result, const Trace& trace, const Cluster& cluster) {
  ASSERT_TRUE(result.ok()) << result.error().message;
  const Plan& plan = result.value().plan;
  EXPECT_THAT(violations(plan, cluster), testing::IsEmpty());
  for (const auto& [name, value] : plan.figures) EXPECT_TRUE(std::isfinite(value)) << name;
  for (const LayerPlan& layer : plan.layers) {
    EXPECT_TRUE(std::isfinite(layer.cover.node) && std::isfinite(layer.cover.device));
    for (const double price : layer.cover.price) EXPECT_TRUE(std::isfinite(price) && price >= 0) << price;
    for (const double load : layer.predicted_load) EXPECT_TRUE(std::isfinite(load) && load >= 0) << load;
  }
  const Figures figures = judged(plan, trace, cluster);
  EXPECT_TRUE(std::isfinite(figures.judge(kSlowYardstick)));
  EXPECT_GE(figures.load_max_over_mean, 1);
}

class AJointPlan : public testing::TestWithParam<const char*> {};

TEST_P(AJointPlan, IsTheSameToTheByteAtAnyThreadCount) {
  const Trace trace = trace_of(1, 300, 16, 4, 5);
  const Cluster cluster = joint::cluster_of({2, 2});
  ThreadPool one(1);
  const Plan first = make_plan(trace, cluster, options_of(GetParam(), 5), one).value().plan;
  for (const int threads : {1, 2, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(make_plan(trace, cluster, options_of(GetParam(), 5), pool).value().plan, first)
        << threads << " threads";
  }
}

TEST_P(AJointPlan, CostsAboutTheSameWhateverTheSeed) {
  const Trace trace = trace_of(2, 2000, 32, 4);
  const Cluster cluster = joint::cluster_of({2, 2});
  ThreadPool pool(2);
  std::vector<double> costs;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    PlanOptions options = options_of(GetParam(), seed);
    options.effort = 1;
    costs.push_back(judged(make_plan(trace, cluster, options, pool).value().plan, trace, cluster)
                        .judge(std::string(GetParam()) == "joint-fast" ? kFastYardstick : kSlowYardstick));
  }
  EXPECT_LE(std::ranges::max(costs), 1.1 * std::ranges::min(costs)) << testing::PrintToString(costs);
}

TEST_P(AJointPlan, IsSoundOnOddMachines) {
  ThreadPool pool(2);
  const Trace trace = trace_of(3, 200, 10, 3, 2);
  for (const std::vector<std::size_t>& machine :
       {std::vector<std::size_t>{1}, {2}, {1, 1}, {2, 2, 2}, {4, 1}, {1, 3, 2}, {16}, {8, 8, 8}, {11, 2}}) {
    SCOPED_TRACE(testing::PrintToString(machine));
    const Cluster cluster = joint::cluster_of(machine);
    for (const int slots : {0, 10}) {
      PlanOptions options = options_of(GetParam());
      if (slots > 0) options.slots = {slots};
      expect_sound(make_plan(trace, cluster, options, pool), trace, cluster);
    }
  }
  Cluster uneven = joint::cluster_of({3, 2});
  const std::vector<int> slots{1, 7, 2, 3, 1};
  std::size_t d = 0;
  for (std::vector<Device>& node : uneven.devices_of_node)
    for (Device& device : node) {
      device.speed = 0.25 * static_cast<double>(1 + d);
      device.slots = slots[d++];
    }
  expect_sound(make_plan(trace, uneven, options_of(GetParam()), pool), trace, uneven);
  uneven.devices_of_node[0][1].slots = 3;  // ten slots for ten experts
  expect_sound(make_plan(trace, uneven, options_of(GetParam()), pool), trace, uneven);
}

TEST_P(AJointPlan, IsSoundForOddTraces) {
  ThreadPool pool(2);
  const Cluster cluster = joint::cluster_of({2, 2});
  const auto expect_planned = [&](const Trace& trace) {
    for (const int slots : {0, 3, 8}) {
      PlanOptions options = options_of(GetParam());
      if (slots > 0) options.slots = {slots};
      expect_sound(make_plan(trace, cluster, options, pool), trace, cluster);
    }
  };
  expect_planned(trace_of(1, 1, 8, 2));     // one token
  expect_planned(trace_of(1, 40, 8, 1));    // one choice
  expect_planned(trace_of(1, 40, 8, 8));    // all chosen, often
  expect_planned(trace_of(1, 40, 1, 1));    // one expert
  expect_planned(trace_of(1, 40, 2, 2));    // more devices than experts
  Trace silent = trace_of(1, 60, 8, 2, 3);  // a layer without a choice
  for (std::size_t t = 0; t < 60; ++t)
    for (std::size_t k = 0; k < 2; ++k) silent.topk_ids[(t * 3 + 1) * 2 + k] = kNotRouted;
  expect_planned(silent);
  std::ranges::fill(silent.topk_ids, kNotRouted);  // nor any other
  expect_planned(silent);
  Trace dominated = trace_of(1, 200, 8, 2);  // one expert in every token
  for (std::size_t t = 0; t < 200; ++t) {
    dominated.topk_ids[2 * t] = 5;
    if (dominated.topk_ids[2 * t + 1] == 5) dominated.topk_ids[2 * t + 1] = kNotRouted;
  }
  expect_planned(dominated);
}

TEST_P(AJointPlan, LeavesNoNodeWhereEveryNodeCanHoldAllExperts) {
  ThreadPool pool(2);
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Trace trace = trace_of(seed, 400, 12, 4);
    for (const std::vector<std::size_t>& machine : {std::vector<std::size_t>{2, 2}, {3, 3}, {2, 2, 2}}) {
      const Cluster cluster = joint::cluster_of(machine);
      PlanOptions options = options_of(GetParam(), seed);
      options.slots = {static_cast<int>(12 / machine.front())};
      const Plan plan = make_plan(trace, cluster, options, pool).value().plan;
      const Figures figures = judged(plan, trace, cluster);
      EXPECT_EQ(figures.remote_nodes_per_token, 0) << testing::PrintToString(machine);
      EXPECT_EQ(figures.cross_node_vectors, 0) << testing::PrintToString(machine);
    }
  }
}

// Judged on the tokens that were planned for. A search is no proof, so that two hundredths are let pass.
TEST_P(AJointPlan, IsNeverWorseForMoreBudget) {
  const std::string strategy = GetParam();
  const Aim aim = strategy == "joint"        ? Aim::kLayerTime
                  : strategy == "joint-slow" ? Aim::kJudgeSlow
                                             : Aim::kJudgeFast;
  ThreadPool pool(2);
  for (const std::vector<std::size_t>& machine : {std::vector<std::size_t>{4}, {2, 2}, {2, 2, 2}}) {
    const Cluster cluster = joint::cluster_of(machine);
    const Trace trace = trace_of(machine.size(), 1200, 24, 4);
    double before = std::numeric_limits<double>::infinity();
    for (const int slots : {6, 7, 8, 10, 14, 24}) {
      PlanOptions options = options_of(strategy);
      options.effort = 0.5;
      options.slots = {slots};
      const Plan plan = make_plan(trace, cluster, options, pool).value().plan;
      const double value = value_of(judged(plan, trace, cluster, options.objective.sizes), aim);
      EXPECT_LE(value, 1.02 * before) << slots << " slots on " << testing::PrintToString(machine);
      before = std::min(before, value);
    }
  }
}

TEST_P(AJointPlan, OfTheImpossibleIsOneLine) {
  ThreadPool pool(1);
  const Trace trace = trace_of(1, 40, 16, 2);
  const Cluster cluster = joint::cluster_of({2, 2});
  const auto message = [&](const Trace& t, const PlanOptions& options) {
    const Result<PlanResult> result = make_plan(t, cluster, options, pool);
    if (result.ok()) return std::string("no error");
    EXPECT_EQ(result.error().kind, ErrorKind::kInvalidInput);
    EXPECT_THAT(result.error().message, testing::Not(HasSubstr("\n")));
    return result.error().message;
  };
  PlanOptions options = options_of(GetParam());
  options.slots = {3};
  EXPECT_THAT(message(trace, options), HasSubstr("cannot hold 16 experts once; 4 on every device would"));
  options.slots = {4, 4};
  EXPECT_THAT(message(trace, options), HasSubstr("2 numbers for 1 MoE layers"));
  options.slots = {-1};
  EXPECT_THAT(message(trace, options), HasSubstr("-1"));
  options = options_of(GetParam());
  for (const double effort : {0.0, -1.0, std::nan(""), 1e9}) {
    options.effort = effort;
    EXPECT_THAT(message(trace, options), HasSubstr("effort")) << effort;
  }
  EXPECT_THAT(message(Trace{}, options_of(GetParam())), HasSubstr("0 tokens"));
  Trace empty = trace;
  empty.topk_ids.clear();
  empty.sequence_offsets = {0};
  EXPECT_THAT(message(empty, options_of(GetParam())), HasSubstr("0 tokens"));
}

INSTANTIATE_TEST_SUITE_P(Aims, AJointPlan, testing::Values("joint", "joint-slow", "joint-fast"),
                         [](const auto& aim) {
                           std::string name = aim.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace grace
