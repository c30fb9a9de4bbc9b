// The strategies that stand beside each other: what each promises, and odd input for all of them.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <string>

#include "grace/base/rng.h"
#include "grace/planner/planner.h"
#include "grace/planner/strategy.h"

namespace grace {
namespace {

using testing::HasSubstr;

// 0: as many slots as wanted. Links and rates are those of a preset, for strategies that minimise seconds.
Cluster cluster_of(const std::vector<std::vector<int>>& slots_of_node) {
  Cluster cluster = parse_cluster("1x1").value();
  cluster.devices_of_node.clear();
  cluster.name = "test";
  for (const std::vector<int>& node : slots_of_node) {
    cluster.devices_of_node.emplace_back();
    for (const int slots : node) cluster.devices_of_node.back().push_back({.slots = slots});
  }
  return cluster;
}

Trace empty_trace(int num_layers, int num_experts, int top_k) {
  Trace trace;
  trace.model = "synthetic";
  trace.num_experts = num_experts;
  trace.experts_per_token = top_k;
  for (int m = 0; m < num_layers; ++m) trace.decoder_layers.push_back(m + 1);
  trace.sequence_offsets = {0};
  return trace;
}

void add_token(Trace& trace, const std::set<std::uint64_t>& experts) {
  for (const std::uint64_t e : experts) trace.topk_ids.push_back(static_cast<std::uint16_t>(e));
}

// Ten sequences whose tokens have topics; expert e belongs to topic e mod 4, and low ids are hotter.
Trace topic_trace(std::uint64_t seed, int num_tokens, int num_layers, int num_experts, int top_k) {
  Rng rng(seed);
  Trace trace = empty_trace(num_layers, num_experts, top_k);
  const auto n = static_cast<std::uint64_t>(num_experts);
  for (int token = 0; token < num_tokens; ++token) {
    for (int m = 0; m < num_layers; ++m) {
      const std::uint64_t topic = rng.below(1 + rng.below(4));
      std::set<std::uint64_t> chosen;
      while (chosen.size() < static_cast<std::size_t>(top_k)) {
        const std::uint64_t e = rng.below(1 + rng.below(n));
        if (e % 4 == topic || rng.below(5) == 0) chosen.insert(e);
      }
      add_token(trace, chosen);
    }
    if ((token + 1) * 10 / num_tokens > token * 10 / num_tokens) trace.sequence_offsets.push_back(token + 1);
  }
  return trace;
}

// Tokens of one layer that choose one expert each: load[e] of them choose e, in that order or in a random
// one.
Trace trace_of_loads(const std::vector<int>& load, std::uint64_t shuffle_seed = 0) {
  Trace trace = empty_trace(1, static_cast<int>(load.size()), 1);
  for (std::size_t e = 0; e < load.size(); ++e)
    trace.topk_ids.insert(trace.topk_ids.end(), static_cast<std::size_t>(load[e]),
                          static_cast<std::uint16_t>(e));
  if (shuffle_seed > 0) Rng(shuffle_seed).shuffle(std::span(trace.topk_ids));
  trace.sequence_offsets.push_back(static_cast<std::int64_t>(trace.topk_ids.size()));
  return trace;
}

// The search need not be long where only soundness is asked for.
PlanOptions briefly(std::string_view strategy) {
  return {.strategy = std::string(strategy),
          .r = 0.15,
          .seed = 4,
          .objective = {.sizes = {.hidden = 64, .expert_ffn = 128}},
          .effort = 0.02};
}

// Strategies that search or set prices on the tokens themselves, where the others look at counts alone.
bool sees_tokens(std::string_view strategy) {
  return strategy.starts_with("joint") || strategy.ends_with("cover");
}

double routed_in(const Trace& trace) {
  return static_cast<double>(trace.topk_ids.size()) -
         static_cast<double>(std::ranges::count(trace.topk_ids, kNotRouted));
}

std::vector<int> copies_of_expert(const LayerPlan& layer, int num_experts) {
  std::vector<int> copies;
  for (const std::vector<DeviceId>& hosts : layer.hosts_of_expert(num_experts))
    copies.push_back(static_cast<int>(hosts.size()));
  return copies;
}

std::size_t held_on(const LayerPlan& layer, std::size_t device) {
  return layer.primaries_of_device[device].size() + layer.replicas_of_device[device].size();
}

struct OddCase {
  const char* name;
  Trace trace;
  Cluster cluster;
  std::vector<int> slots = {};
};

void PrintTo(const OddCase& odd, std::ostream* out) { *out << odd.name; }

Trace silent_trace() {
  Trace trace = topic_trace(1, 50, 2, 8, 2);
  std::ranges::fill(trace.topk_ids, kNotRouted);
  return trace;
}

std::vector<OddCase> odd_cases() {
  const Trace sixteen = topic_trace(3, 300, 2, 16, 3);
  const Trace four = topic_trace(5, 200, 2, 4, 2);
  return {
      {"ThreeNodesOfTwo", topic_trace(2, 300, 2, 8, 2), cluster_of({{0, 0}, {0, 0}, {0, 0}})},
      {"OneDevice", four, cluster_of({{0}})},
      {"EightDevicesForFourExperts", four, cluster_of({{0, 0, 0, 0, 0, 0, 0, 0}})},
      {"EightDevicesInTwoNodesForFourExperts", four, cluster_of({{0, 0, 0, 0}, {0, 0, 0, 0}})},
      {"EightSlotsForFourExperts", four, cluster_of({{0, 0, 0, 0}, {0, 0, 0, 0}}), {1}},
      {"ANodeWithFewerDevices", sixteen, cluster_of({{0, 0, 0}, {0}})},
      {"UnequalSlots", sixteen, cluster_of({{5, 9}, {3, 4}})},
      {"UnequalSlotsThatJustSuffice", sixteen, cluster_of({{1, 9}, {2, 4}})},
      {"OneSlotAndManyDevices", sixteen, cluster_of({{1, 1, 1}, {16, 16}, {1}})},
      {"TwoHundredAndFiftySixExpertsOnThree", topic_trace(6, 400, 1, 256, 8), cluster_of({{0, 0, 0}})},
      {"TwoHundredAndFiftySixExpertsOnThreeNodes",
       topic_trace(6, 400, 1, 256, 8),
       cluster_of({{0}, {0}, {0}}),
       {86}},
      {"SevenExpertsOnFive", topic_trace(7, 100, 2, 7, 7), cluster_of({{0, 0}, {0, 0, 0}})},
      {"OneExpert", topic_trace(8, 20, 1, 1, 1), cluster_of({{0, 0}, {0}})},
      {"OneToken", topic_trace(9, 1, 3, 16, 3), cluster_of({{0, 0}, {0, 0}})},
      {"NoLoad", silent_trace(), cluster_of({{0, 0}, {0, 0}})},
      {"OneDominantExpert", trace_of_loads({1000, 0, 0, 0}), cluster_of({{0, 0}, {0, 0}}), {2}},
      {"BudgetsByLayer", sixteen, cluster_of({{0, 0}, {0, 0}}), {4, 7}},
      {"RoomForEverythingEverywhere", sixteen, cluster_of({{0, 0}, {0}}), {99}},
  };
}

class AnOddInput : public testing::TestWithParam<OddCase> {};

TEST_P(AnOddInput, GivesASoundPlanByEveryStrategy) {
  const OddCase& odd = GetParam();
  ThreadPool pool(2);
  for (const std::string_view strategy : strategy_names()) {
    SCOPED_TRACE(strategy);
    PlanOptions options = briefly(strategy);
    options.slots = odd.slots;
    const Result<PlanResult> result = make_plan(odd.trace, odd.cluster, options, pool);
    ASSERT_TRUE(result.ok()) << result.error().message;
    const Plan& plan = result.value().plan;
    EXPECT_THAT(violations(plan, odd.cluster), testing::IsEmpty());
    EXPECT_THAT(plan.figures,
                testing::Each(testing::Pair(
                    testing::_, testing::ResultOf([](double value) { return std::isfinite(value); }, true))));
    if (sees_tokens(strategy)) continue;  // predicts from its part of them
    double predicted = 0;
    for (const LayerPlan& layer : plan.layers)
      predicted = std::accumulate(layer.predicted_load.begin(), layer.predicted_load.end(), predicted);
    EXPECT_NEAR(predicted, routed_in(odd.trace), 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, AnOddInput, testing::ValuesIn(odd_cases()),
                         [](const auto& odd) { return std::string(odd.param.name); });

TEST(AnImpossibleInput, IsRefusedInOneLineByEveryStrategy) {
  ThreadPool pool(1);
  const Trace trace = topic_trace(6, 40, 1, 256, 8);
  for (const std::string_view strategy : strategy_names()) {
    SCOPED_TRACE(strategy);
    PlanOptions options = briefly(strategy);
    options.slots = {85};
    const auto few = make_plan(trace, cluster_of({{0, 0, 0}}), options, pool);
    ASSERT_FALSE(few.ok());
    EXPECT_THAT(few.error().message, HasSubstr("86 on every device would"));
    EXPECT_THAT(few.error().message, testing::Not(HasSubstr("\n")));
    EXPECT_FALSE(make_plan(trace, cluster_of({{85, 85, 85}}), briefly(strategy), pool).ok());
    EXPECT_FALSE(make_plan(empty_trace(1, 4, 2), cluster_of({{0}}), briefly(strategy), pool).ok());
  }
}

TEST(EveryStrategy, MakesTheSamePlanWithOneThreadAndWithThree) {
  const Trace trace = topic_trace(11, 500, 5, 24, 4);
  const Cluster cluster = cluster_of({{0, 0, 0}, {9, 9}});
  ThreadPool one(1);
  ThreadPool three(3);
  for (const std::string_view strategy : strategy_names()) {
    PlanOptions options = briefly(strategy);
    options.r = -1;
    EXPECT_EQ(make_plan(trace, cluster, options, one).value().plan,
              make_plan(trace, cluster, options, three).value().plan)
        << strategy;
  }
}

// Random counts so large that ties are as good as absent.
std::vector<LayerStats> random_stats(Rng& rng, std::size_t num_layers, std::size_t num_experts) {
  std::vector<LayerStats> layers(num_layers);
  for (LayerStats& stats : layers) {
    stats.num_experts = static_cast<int>(num_experts);
    stats.affinity.assign(num_experts * num_experts, 0);
    for (std::size_t i = 0; i < num_experts; ++i) {
      stats.load.push_back(1 + static_cast<std::int64_t>(rng.below(1ULL << 40)));
      for (std::size_t j = 0; j < i; ++j)
        stats.affinity[i * num_experts + j] = stats.affinity[j * num_experts + i] =
            static_cast<std::int64_t>(rng.below(1ULL << (i % 4 == j % 4 ? 34 : 30)));
    }
  }
  return layers;
}

std::vector<LayerStats> relabelled(const std::vector<LayerStats>& layers,
                                   const std::vector<std::int32_t>& new_id) {
  std::vector<LayerStats> out = layers;
  for (std::size_t m = 0; m < layers.size(); ++m)
    for (std::size_t i = 0; i < new_id.size(); ++i) {
      const auto to = static_cast<std::size_t>(new_id[i]);
      out[m].load[to] = layers[m].load[i];
      for (std::size_t j = 0; j < new_id.size(); ++j)
        out[m].affinity[to * new_id.size() + static_cast<std::size_t>(new_id[j])] =
            layers[m].affinity[i * new_id.size() + j];
    }
  return out;
}

std::set<std::int32_t> held_by(const LayerPlan& layer, std::size_t device,
                               const std::vector<std::int32_t>& new_id) {
  std::set<std::int32_t> held;
  for (const auto* list : {&layer.primaries_of_device[device], &layer.replicas_of_device[device]})
    for (const ExpertId e : *list) held.insert(new_id[e.idx()]);
  return held;
}

class APublishedStrategy : public testing::TestWithParam<std::uint64_t> {};

// The default order goes by id; all others that look at counts alone do not.
TEST_P(APublishedStrategy, OnlyRelabelsItsPlanWhenExpertsAreRelabelled) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  const std::size_t num_experts = 20;
  const std::vector<LayerStats> stats = random_stats(rng, 3, num_experts);
  std::vector<std::int32_t> new_id(num_experts);
  std::iota(new_id.begin(), new_id.end(), 0);
  const std::vector<std::int32_t> same_id = new_id;
  rng.shuffle(std::span(new_id));
  const std::vector<LayerStats> other = relabelled(stats, new_id);
  const Cluster cluster = cluster_of({{0, 0, 0}, {0, 0, 0}});
  const std::vector<std::vector<int>> slots(3, std::vector<int>(6, 5));
  const Trace unused = empty_trace(3, static_cast<int>(num_experts), 2);
  const PlanOptions options;
  ThreadPool pool(2);
  for (const Strategy& strategy : strategies()) {
    if (strategy.name == "vanilla" || sees_tokens(strategy.name)) continue;
    const StrategyOutput before =
        strategy.make_layers({stats, unused, unused, cluster, slots, 0, options, pool});
    const StrategyOutput after = strategy.make_layers({other, unused, unused, cluster, slots, 0, options, pool});
    for (std::size_t m = 0; m < stats.size(); ++m)
      for (std::size_t d = 0; d < 6; ++d)
        EXPECT_EQ(held_by(after.layers[m], d, same_id), held_by(before.layers[m], d, new_id))
            << strategy.name << ", layer " << m << ", device " << d;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, APublishedStrategy, testing::Range<std::uint64_t>(0, 20));

TEST(AnEplbPlan, SharesOneDominantExpertByFourAndFillsTheRest) {
  ThreadPool pool(1);
  PlanOptions options = briefly("eplb-flat");
  options.slots = {2};
  const Plan plan =
      make_plan(trace_of_loads({1000, 0, 0, 0}), cluster_of({{0, 0, 0, 0}}), options, pool).value().plan;
  EXPECT_THAT(plan.layers[0].predicted_load, testing::Each(250));
  EXPECT_EQ(copies_of_expert(plan.layers[0], 4).front(), 4);
  for (std::size_t d = 0; d < 4; ++d) EXPECT_EQ(held_on(plan.layers[0], d), 2u);
  EXPECT_EQ(plan.provenance.at("second_copies_moved"), "1");
  EXPECT_EQ(plan.provenance.at("eplb"), "flat");
}

TEST(AnEplbPlan, SpreadsCopiesEvenlyWhereThereIsNoLoad) {
  ThreadPool pool(1);
  for (const char* strategy : {"eplb", "eplb-flat"}) {
    Trace trace = trace_of_loads({1, 1, 1, 1});
    std::ranges::fill(trace.topk_ids, kNotRouted);
    PlanOptions options = briefly(strategy);
    options.slots = {2};
    const Plan plan = make_plan(trace, cluster_of({{0, 0}, {0, 0}}), options, pool).value().plan;
    EXPECT_THAT(copies_of_expert(plan.layers[0], 4), testing::Each(2));
    EXPECT_EQ(plan.figures.at("load_max_over_mean_insample"), 1);
    EXPECT_EQ(plan.provenance.at("moe_ordinals_without_data"), "0");
  }
}

TEST(AnEplbPlan, DoesNotDependOnTheOrderOfTheTokens) {
  const std::vector<int> load{90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86};
  const std::vector<int> equal(12, 50);
  ThreadPool pool(1);
  const Cluster cluster = cluster_of({{2, 2, 2, 2}, {2, 2, 2, 2}});
  for (const std::vector<int>& loads : {load, equal})
    for (const char* strategy : {"eplb", "eplb-flat"}) {
      const Plan plan = make_plan(trace_of_loads(loads), cluster, briefly(strategy), pool).value().plan;
      EXPECT_EQ(make_plan(trace_of_loads(loads, 7), cluster, briefly(strategy), pool).value().plan.layers,
                plan.layers);
    }
}

TEST(AnEplbPlan, NeedsNoAffinityAndBalancesBetterThanTheDefaultOrder) {
  ThreadPool pool(2);
  const Trace trace = topic_trace(12, 3000, 4, 32, 1);
  const Cluster cluster = cluster_of({{0, 0}, {0, 0}});
  const auto peak = [&](const char* strategy) {
    return make_plan(trace, cluster, briefly(strategy), pool)
        .value()
        .plan.figures.at("load_max_over_mean_insample");
  };
  EXPECT_LT(peak("eplb"), 1.05);
  EXPECT_LT(peak("eplb-flat"), 1.05);
  EXPECT_GT(peak("vanilla"), 1.2);
}

TEST(AnEplbPlan, FillsItsBudgetAndIsHierarchicalWhereExpertsDivide) {
  ThreadPool pool(2);
  const Trace trace = topic_trace(13, 500, 2, 16, 3);
  PlanOptions options = briefly("eplb");
  options.slots = {4, 6};
  const Plan plan = make_plan(trace, cluster_of({{0, 0}, {0, 5}}), options, pool).value().plan;
  for (std::size_t d = 0; d < 4; ++d) {
    EXPECT_EQ(held_on(plan.layers[0], d), 4u);
    EXPECT_EQ(held_on(plan.layers[1], d), d == 3 ? 5u : 6u);
  }
  EXPECT_EQ(plan.provenance.at("eplb"), "hierarchical");
  const Plan odd = make_plan(trace, cluster_of({{0}, {0}, {0}}), briefly("eplb"), pool).value().plan;
  EXPECT_EQ(odd.provenance.at("eplb"), "flat");
}

class TheGraceVariants : public testing::Test {
 protected:
  Plan plan(std::string_view strategy) {
    return make_plan(trace_, cluster_, briefly(strategy), pool_).value().plan;
  }
  static std::vector<std::vector<std::vector<ExpertId>>> groups(const Plan& plan) {
    std::vector<std::vector<std::vector<ExpertId>>> out;
    for (const LayerPlan& layer : plan.layers) out.push_back(layer.primaries_of_device);
    return out;
  }
  static std::size_t copies(const Plan& plan) {
    std::size_t count = 0;
    for (const LayerPlan& layer : plan.layers)
      for (const std::vector<ExpertId>& replicas : layer.replicas_of_device) count += replicas.size();
    return count;
  }

  Trace trace_ = topic_trace(14, 1500, 4, 32, 4);
  Cluster cluster_ = cluster_of({{0, 0, 0, 0}, {0, 0, 0, 0}});
  ThreadPool pool_{2};
};

TEST_F(TheGraceVariants, ShareTheirGroupsAndDifferInCopiesAndRouting) {
  const Plan grace = plan("grace");
  const Plan bare = plan("grace-hg");
  const Plan fixed = plan("grace-hg-fr-wrr");
  const Plan dynamic = plan("grace-hg-dr-wrr");
  EXPECT_EQ(groups(bare), groups(grace));
  EXPECT_EQ(groups(fixed), groups(grace));
  EXPECT_EQ(dynamic.layers, grace.layers);
  EXPECT_EQ(grace.routing, "tar");
  EXPECT_EQ(fixed.routing, "wrr");
  EXPECT_EQ(dynamic.routing, "wrr");
  EXPECT_EQ(copies(bare), 0u);
  EXPECT_GT(copies(grace), 0u);
  EXPECT_GT(copies(fixed), 0u);
  for (const LayerPlan& layer : fixed.layers)
    EXPECT_THAT(copies_of_expert(layer, 32), testing::Each(testing::Le(2)));
  EXPECT_EQ(grace.provenance.at("replication"), "dynamic");
  EXPECT_EQ(fixed.provenance.at("replication"), "fixed");
  EXPECT_EQ(bare.provenance.at("replication"), "none");
}

TEST_F(TheGraceVariants, HoldSizesAsTheyAreNamed) {
  const Plan uniform = plan("grace-uniform");
  EXPECT_EQ(copies(uniform), 0u);
  EXPECT_EQ(uniform.provenance.at("sizes"), "uniform");
  EXPECT_FALSE(uniform.provenance.contains("r"));
  for (const LayerPlan& layer : uniform.layers)
    for (const std::vector<ExpertId>& group : layer.primaries_of_device) EXPECT_EQ(group.size(), 4u);
  const Plan free = plan("grace-free");
  EXPECT_GT(copies(free), 0u);
  EXPECT_EQ(free.provenance.at("sizes"), "free");
  const auto kept = [](const Plan& p) { return p.figures.at("affinity_kept_insample"); };
  EXPECT_GE(kept(free), kept(plan("grace")));
  EXPECT_GT(kept(plan("grace")), kept(uniform));
}

TEST_F(TheGraceVariants, HaveOccultBesideThemWithEqualGroupsAndNoCopies) {
  const Plan occult = plan("occult");
  EXPECT_EQ(copies(occult), 0u);
  for (const LayerPlan& layer : occult.layers)
    for (const std::vector<ExpertId>& group : layer.primaries_of_device) EXPECT_EQ(group.size(), 4u);
  EXPECT_GT(occult.figures.at("affinity_kept_insample"),
            plan("vanilla").figures.at("affinity_kept_insample"));
}

}  // namespace
}  // namespace grace
