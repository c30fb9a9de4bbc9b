#include "grace/planner/loads.h"

#include <gmock/gmock.h>

#include <numeric>

#include "grace/base/rng.h"

namespace grace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

LoadProfile skewed_profile(std::uint64_t seed, int layers, int experts) {
  Rng rng(seed);
  LoadProfile profile;
  profile.model = "toy";
  profile.source = "counts";
  profile.num_experts = experts;
  for (int m = 0; m < layers; ++m) {
    profile.decoder_layers.push_back(m + 1);
    std::vector<std::int64_t>& loads = profile.loads.emplace_back();
    for (int e = 0; e < experts; ++e)
      loads.push_back(static_cast<std::int64_t>(1 + rng.below(20) * rng.below(20)));
  }
  return profile;
}

// A trace with these loads: a token an assignment.
Trace trace_of(const LoadProfile& profile) {
  Trace trace;
  trace.model = profile.model;
  trace.num_experts = profile.num_experts;
  trace.experts_per_token = 1;
  trace.decoder_layers = profile.decoder_layers;
  std::int64_t most = 0;
  for (const auto& loads : profile.loads)
    most = std::max(most, std::accumulate(loads.begin(), loads.end(), std::int64_t{0}));
  const auto layers = profile.loads.size();
  trace.topk_ids.assign(static_cast<std::size_t>(most) * layers, kNotRouted);
  for (std::size_t m = 0; m < layers; ++m)
    for (std::size_t e = 0, t = 0; e < profile.loads[m].size(); ++e)
      for (std::int64_t i = 0; i < profile.loads[m][e]; ++i, ++t)
        trace.topk_ids[t * layers + m] = static_cast<std::uint16_t>(e);
  trace.sequence_offsets = {0, most};
  return trace;
}

class APlanFromLoads : public testing::TestWithParam<const char*> {};

TEST_P(APlanFromLoads, IsThatOfATraceWithTheSameLoads) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const LoadProfile profile = skewed_profile(seed, 3, 12);
    const Cluster cluster = parse_cluster("2x2").value();
    ThreadPool pool(2);
    PlanOptions options;
    options.strategy = GetParam();
    const Plan from_loads = make_plan(profile, cluster, options, pool).value().plan;
    const Plan from_trace = make_plan(trace_of(profile), cluster, options, pool).value().plan;
    EXPECT_EQ(from_loads.layers, from_trace.layers);
    EXPECT_EQ(from_loads.figures.at("load_max_over_mean_insample"),
              from_trace.figures.at("load_max_over_mean_insample"));
    EXPECT_FALSE(from_loads.figures.contains("affinity_kept_insample"));
    EXPECT_EQ(from_loads.provenance.at("load_profile_hash"), hash_of(profile));
    EXPECT_FALSE(from_loads.provenance.contains("trace_hash"));
    const std::vector<LoadFigures> judged = judge_loads(from_loads, profile).value();
    EXPECT_NEAR(mean_of(judged).max_over_mean, from_loads.figures.at("load_max_over_mean_insample"), 1e-9);
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, APlanFromLoads, testing::Values("vanilla", "eplb", "eplb-flat"),
                         [](const auto& one) {
                           std::string name = one.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(APlanFromLoadsAlone, IsRefusedWhereCoactivationDecides) {
  const LoadProfile profile = skewed_profile(1, 1, 8);
  ThreadPool pool(1);
  EXPECT_THAT(load_strategy_names(), ElementsAre("vanilla", "eplb", "eplb-flat"));
  for (const std::string_view name : strategy_names()) {
    PlanOptions options;
    options.strategy = name;
    const auto made = make_plan(profile, parse_cluster("2x2").value(), options, pool);
    EXPECT_EQ(made.ok(), name == "vanilla" || name == "eplb" || name == "eplb-flat") << name;
    if (made.ok()) continue;
    EXPECT_EQ(made.error().message,
              "strategy " + options.strategy +
                  ": goes by which experts a token chooses together, which a load profile (counts) does not "
                  "say; from loads alone: vanilla, eplb, eplb-flat");
  }
}

TEST(APlanFromLoadsAlone, OfAnUnsoundProfileIsRefused) {
  LoadProfile profile = skewed_profile(1, 1, 8);
  profile.loads[0][3] = -1;
  ThreadPool pool(1);
  PlanOptions options;
  options.strategy = "eplb";
  EXPECT_THAT(make_plan(profile, parse_cluster("2x2").value(), options, pool).error().message,
              HasSubstr("load profile counts: layer 0: expert 3 has a load of -1"));
}

TEST(FiguresFromLoads, ShareAnExpertsLoadAmongItsCopies) {
  Plan plan = vanilla_plan("toy", 4, {1}, parse_cluster("1x2").value());
  plan.layers[0].replicas_of_device[1] = {ExpertId(0)};
  const LoadProfile profile{"toy", "", 4, 0, {1}, {{8, 2, 3, 3}}};
  const std::vector<LoadFigures> layers = judge_loads(plan, profile).value();
  ASSERT_EQ(layers.size(), 1U);
  EXPECT_THAT(layers[0].load, ElementsAre(6, 10));
  EXPECT_DOUBLE_EQ(layers[0].max_over_mean, 1.25);
  EXPECT_DOUBLE_EQ(layers[0].deviation_of_mean, 0.25);
  EXPECT_EQ(layers[0].fullest, 3);
  EXPECT_EQ(layers[0].replicas, 1);
}

TEST(FiguresFromLoads, OfALayerWithoutLoadAreThoseOfEvenLoad) {
  const Plan plan = vanilla_plan("toy", 4, {1}, parse_cluster("1x2").value());
  const LoadFigures silent = judge_loads(plan, {"toy", "", 4, 0, {1}, {{0, 0, 0, 0}}}).value().front();
  EXPECT_EQ(silent.max_over_mean, 1);
  EXPECT_EQ(silent.deviation_of_mean, 0);
  EXPECT_FALSE(judge_loads(plan, {"toy", "", 4, 0, {2}, {{0, 0, 0, 0}}}).ok());
}

TEST(AComparisonByLoads, RecommendsTheLeastMemoryThatIsAsEven) {
  const LoadProfile profile = skewed_profile(4, 4, 16);
  ThreadPool pool(2);
  const std::vector<std::string> names = {"vanilla", "eplb", "eplb-flat"};
  const std::vector<SlotsSpec> slots = parse_slots("4,6,16").value();
  const LoadComparison made =
      compare_loads(profile, parse_cluster("2x2").value(), names, slots, {}, pool).value();
  ASSERT_EQ(made.rows.size(), 7U);
  for (const LoadRow& row : made.rows)
    EXPECT_GE(row.figures.max_over_mean, made.rows[made.best].figures.max_over_mean);
  EXPECT_NEAR(made.rows[made.best].figures.max_over_mean, 1, 1e-9);  // sixteen slots hold everything
  EXPECT_LE(made.rows[made.recommended].figures.max_over_mean,
            made.rows[made.best].figures.max_over_mean + 0.01);
  EXPECT_THAT(made.recommendation, HasSubstr("in-sample"));
  EXPECT_THAT(
      compare_loads(profile, parse_cluster("2x2").value(), names, parse_slots("grace").value(), {}, pool)
          .error()
          .message,
      HasSubstr("a load profile lacks"));
}

TEST(AComparisonByLoads, CountsTheSecondCopiesThatEplbWouldMake) {
  const LoadProfile profile{"toy", "", 4, 0, {1}, {{1000, 1, 2, 3}}};
  ThreadPool pool(1);
  const std::vector<std::string> names = {"eplb"};
  const LoadComparison made =
      compare_loads(profile, parse_cluster("1x4").value(), names, parse_slots("2").value(), {}, pool).value();
  EXPECT_GT(made.rows[0].second_copies_moved, 0);
  EXPECT_NEAR(made.rows[0].figures.max_over_mean, 1, 0.02);
}

}  // namespace
}  // namespace grace
