#include "grace/sim/simulate.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "grace/sim/replay.h"
#include "grace/sim/slow_simulation.h"
#include "grace/sim/test_workload.h"

namespace grace {
namespace {

using testing::HasSubstr;

void expect_near(double got, double want) { EXPECT_NEAR(got, want, 1e-9 * std::max(1e-3, std::abs(want))); }

void expect_near(const LayerTime& got, const LayerTime& want) {
  expect_near(got.cross_node_s, want.cross_node_s);
  expect_near(got.intra_node_s, want.intra_node_s);
  expect_near(got.latency_s, want.latency_s);
  expect_near(got.compute_s, want.compute_s);
  expect_near(got.mean_compute_s, want.mean_compute_s);
}

void expect_near(const LayerSimulation& got, SlowSimulation::Layer want) {
  EXPECT_EQ(static_cast<double>(got.passes), want.passes);
  EXPECT_EQ(static_cast<double>(got.cross_node_vectors), want.cross_vectors);
  EXPECT_EQ(static_cast<double>(got.intra_node_vectors), want.intra_vectors);
  EXPECT_EQ(got.load, want.load);
  expect_near(got.prefill, want.time[true]);
  expect_near(got.decode, want.time[false]);
  for (std::size_t d = 0; d < want.compute_s.size(); ++d)
    expect_near(got.compute_of_device_s[d], want.compute_s[d]);
  if (want.passes == 0) return;
  expect_near(got.figures.remote_nodes_per_token, want.x / want.tokens);
  expect_near(got.figures.forwards_per_token, want.y / want.tokens);
  expect_near(got.figures.devices_per_token, want.used / want.tokens);
  expect_near(got.figures.load_max_over_mean, want.max_over_mean / want.passes);
  expect_near(got.figures.load_std, want.deviation / want.passes);
  expect_near(got.figures.time.total_s(), got.time().total_s() / want.passes);
}

void expect_near(const PhaseTime& got, const PhaseTime& want) {
  EXPECT_EQ(got.passes, want.passes);
  EXPECT_EQ(got.tokens, want.tokens);
  expect_near(got.attention_s, want.attention_s);
  expect_near(got.dense_ffn_s, want.dense_ffn_s);
  expect_near(got.beside_experts_s, want.beside_experts_s);
  expect_near(got.head_s, want.head_s);
}

constexpr Dispatch kAllDispatches[] = {Dispatch::kTwoStage, Dispatch::kPerDevice, Dispatch::kFlat,
                                       Dispatch::kPadded, Dispatch::kAllGather};

// As many partners as a token needs and perhaps more, another order for each expert.
void hold_to_some_partners(Case& given) {
  const int experts = given.trace.num_experts;
  const int least = std::max(1, given.trace.experts_per_token - 1);
  for (LayerPlan& layer : given.plan.layers)
    for (int e = 0; e < experts; ++e) {
      auto& partners = layer.partners_of_expert.emplace_back();
      for (int i = 1; i < experts && static_cast<int>(partners.size()) < least + e % 2; ++i)
        partners.push_back(ExpertId((e + i) % experts));
    }
}

void expect_twin(const Case& given, const SimulateOptions& options) {
  ThreadPool pool(1);
  SlowSimulation want(given.trace, given.plan, given.cluster, options);
  want.run();
  const Simulation got = simulate(given.trace, given.plan, given.cluster, options, pool).value();
  ASSERT_EQ(got.layers.size(), want.layers().size());
  for (std::size_t m = 0; m < got.layers.size(); ++m) {
    SCOPED_TRACE("moe layer " + std::to_string(m));
    expect_near(got.layers[m], want.layers()[m]);
  }
  expect_near(got.prefill, want.phases()[true]);
  expect_near(got.decode, want.phases()[false]);
  double moe_s = 0;
  for (const LayerSimulation& layer : got.layers) moe_s += layer.time().total_s();
  expect_near(got.whole().moe.total_s(), moe_s);
}

class ASimulation : public testing::TestWithParam<std::uint64_t> {};

TEST_P(ASimulation, EqualsItsSlowTwin) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Case given(GetParam());
  if (GetParam() % 3 == 0) given.plan.routing = "cover_feedback";
  if (GetParam() % 4 == 1) hold_to_some_partners(given);
  for (const Dispatch dispatch : kAllDispatches) {
    SCOPED_TRACE(name_of(dispatch));
    SimulateOptions options = some_options(given.batch, dispatch);
    for (const Combine combine : {Combine::kReduced, Combine::kExact}) {
      SCOPED_TRACE(name_of(combine));
      options.combine = combine;
      expect_twin(given, options);
    }
  }
}

TEST_P(ASimulation, OfAWorkloadEqualsItsSlowTwin) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  const Case given(GetParam());
  if (given.trace.num_tokens() == 0) GTEST_SKIP() << "a workload needs a token";
  Rng rng(GetParam() + 1000);
  for (const Dispatch dispatch : kAllDispatches) {
    SCOPED_TRACE(name_of(dispatch));
    SimulateOptions options = some_options(1 + static_cast<int>(rng.below(9)), dispatch);
    options.combine = Combine::kExact;
    options.workload = {1 + static_cast<int>(rng.below(12)), 1 + static_cast<int>(rng.below(6))};
    expect_twin(given, options);
  }
}

TEST_P(ASimulation, SendsTheVectorsThatAReplaySends) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  const Case given(GetParam());
  ThreadPool pool(2);
  for (const Dispatch dispatch : kAllDispatches) {
    SCOPED_TRACE(name_of(dispatch));
    SimulateOptions options = some_options(given.batch, dispatch);
    options.combine = GetParam() % 2 == 0 ? Combine::kExact : Combine::kReduced;
    const Simulation got = simulate(given.trace, given.plan, given.cluster, options, pool).value();
    const Replay want =
        replay(given.trace, given.plan, given.cluster, {given.batch, dispatch, options.combine, 64, {}}, pool)
            .value();
    for (std::size_t m = 0; m < got.layers.size(); ++m) {
      const LayerTraffic& traffic = want.layers[m].traffic;
      EXPECT_EQ(got.layers[m].cross_node_vectors * 64, traffic.dispatch.cross_node_payload);
      EXPECT_EQ(got.layers[m].intra_node_vectors * 64, traffic.dispatch.intra_node_payload);
      EXPECT_EQ(got.layers[m].load, traffic.load);
      EXPECT_EQ(got.layers[m].passes, want.layers[m].steps);
      EXPECT_EQ(got.layers[m].cross_node_results * 64, traffic.combine.cross_node_payload);
      EXPECT_EQ(got.layers[m].intra_node_results * 64, traffic.combine.intra_node_payload);
    }
  }
}

TEST_P(ASimulation, IsTheSameToTheBitAtAnyThreadCount) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Case given(GetParam());
  ThreadPool one(1), three(3);
  if (GetParam() % 2 == 0) given.plan.routing = "cover_feedback";
  const SimulateOptions options = some_options(given.batch, Dispatch::kTwoStage);
  const Simulation a = simulate(given.trace, given.plan, given.cluster, options, one).value();
  const Simulation b = simulate(given.trace, given.plan, given.cluster, options, three).value();
  EXPECT_EQ(a.whole().total_s(), b.whole().total_s());
  EXPECT_EQ(a.whole().all_to_all_of_whole(), b.whole().all_to_all_of_whole());
  for (std::size_t m = 0; m < a.layers.size(); ++m) {
    EXPECT_EQ(a.layers[m].time().total_s(), b.layers[m].time().total_s());
    EXPECT_EQ(a.layers[m].compute_of_device_s, b.layers[m].compute_of_device_s);
    EXPECT_EQ(a.layers[m].figures.load_std, b.layers[m].figures.load_std);
  }
  ASSERT_EQ(a.records.size(), b.records.size());
  for (std::size_t r = 0; r < a.records.size(); ++r)
    EXPECT_EQ(a.records[r].expert_compute_s, b.records[r].expert_compute_s);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ASimulation, testing::Range<std::uint64_t>(0, 60));

Trace empty_trace() {
  Trace trace;
  trace.model = "test";
  trace.num_experts = 4;
  trace.experts_per_token = 2;
  trace.decoder_layers = {1, 2, 5};
  return trace;
}

TEST(ASimulationOfNothing, TakesNoTimeAndIsNeverNan) {
  const Trace trace = empty_trace();
  const Cluster cluster = timed_cluster({2, 2});
  const Plan plan = vanilla_plan("test", 4, trace.decoder_layers, cluster);
  ThreadPool pool(2);
  const Simulation got = simulate(trace, plan, cluster, some_options(0, Dispatch::kTwoStage), pool).value();
  EXPECT_EQ(got.layers.size(), 3U);
  EXPECT_EQ(got.whole().total_s(), 0);
  EXPECT_EQ(got.whole().all_to_all_of_whole(), 0);
  EXPECT_EQ(got.whole().all_to_all_of_moe_layers(), 0);
  EXPECT_EQ(got.layers[0].figures.load_max_over_mean, 1);
}

TEST(ASimulationOfOneToken, SendsNothingOnOneDevice) {
  Trace trace = empty_trace();
  trace.topk_ids = {0, 1, 2, 3, kNotRouted, 1};
  trace.sequence_offsets = {0, 1};
  const Cluster cluster = timed_cluster({1});
  const Plan plan = vanilla_plan("test", 4, trace.decoder_layers, cluster);
  ThreadPool pool(1);
  const Simulation got = simulate(trace, plan, cluster, some_options(0, Dispatch::kTwoStage), pool).value();
  EXPECT_EQ(got.whole().moe.all_to_all_s(), 0);
  EXPECT_EQ(got.layers[0].load, std::vector<std::int64_t>{2});
  EXPECT_EQ(got.layers[2].load, std::vector<std::int64_t>{1});
  expect_near(got.layers[0].time().compute_s, 2 * 3 * 32 * 16 * 2 / 1e9 / 0.5);
  EXPECT_EQ(got.prefill.tokens, 1);
  EXPECT_EQ(got.decode.passes, 0);
}

TEST(ASimulationOfOneToken, EntersTheOtherNodeOnce) {
  Trace trace = empty_trace();
  trace.decoder_layers = {0};
  trace.topk_ids = {2, 3};
  trace.sequence_offsets = {0, 1};
  const Cluster cluster = timed_cluster({2, 2});  // vanilla: expert e on device e
  const Plan plan = vanilla_plan("test", 4, {0}, cluster);
  ThreadPool pool(1);
  const auto vectors = [&](Dispatch dispatch) {
    SimulateOptions options = some_options(0, dispatch);
    options.model = {};
    const Simulation got = simulate(trace, plan, cluster, options, pool).value();
    EXPECT_EQ(got.whole().total_s(), got.whole().moe.total_s()) << "without prices only the MoE layer counts";
    return std::pair(got.layers[0].cross_node_vectors, got.layers[0].intra_node_vectors);
  };
  EXPECT_EQ(vectors(Dispatch::kTwoStage), std::pair(std::int64_t{1}, std::int64_t{1}));
  EXPECT_EQ(vectors(Dispatch::kPerDevice), std::pair(std::int64_t{2}, std::int64_t{0}));
}

TEST(ASimulationWithoutSizes, CountsAndTakesNoTime) {
  const Case given(3);
  ThreadPool pool(1);
  SimulateOptions options = some_options(given.batch, Dispatch::kTwoStage);
  options.sizes = {};
  options.model = {};
  const Simulation got = simulate(given.trace, given.plan, given.cluster, options, pool).value();
  EXPECT_EQ(got.whole().total_s(), 0);
  EXPECT_GT(std::accumulate(got.layers[0].load.begin(), got.layers[0].load.end(), std::int64_t{0}), 0);
}

TEST(ASimulation, TellsTheCallerHowFarItIs) {
  const Case given(3);
  ThreadPool pool(1);
  SimulateOptions options = some_options(given.batch, Dispatch::kTwoStage);
  std::vector<std::int64_t> seen;
  options.progress = [&](std::int64_t done, std::int64_t total) {
    EXPECT_EQ(total, 3);
    seen.push_back(done);
  };
  ASSERT_TRUE(simulate(given.trace, given.plan, given.cluster, options, pool).ok());
  EXPECT_EQ(seen, (std::vector<std::int64_t>{1, 2, 3}));
}

TEST(ASimulation, RefusesWhatDoesNotFit) {
  Case given(4);
  ThreadPool pool(1);
  const auto message = [&](int batch) {
    const auto got =
        simulate(given.trace, given.plan, given.cluster, some_options(batch, Dispatch::kTwoStage), pool);
    return got.ok() ? "ok" : got.error().message;
  };
  EXPECT_EQ(message(0), "ok");
  EXPECT_EQ(message(-1), "batch -1 is below 0");
  given.plan.routing = "by smell";
  EXPECT_THAT(message(0), HasSubstr("by smell"));
  given.plan.routing = "tar";
  given.cluster = timed_cluster({2, 2, 2, 2});
  EXPECT_THAT(message(0), HasSubstr("plan: "));
}

TEST(ASimulation, OfAWorkloadThatIsNoneIsRefused) {
  const Case given(4);
  ThreadPool pool(1);
  const auto message = [&](const Trace& trace, int batch, Workload workload) {
    SimulateOptions options = some_options(batch, Dispatch::kTwoStage);
    options.workload = workload;
    const auto got = simulate(trace, given.plan, given.cluster, options, pool);
    return got.ok() ? "ok" : got.error().message;
  };
  EXPECT_EQ(message(given.trace, 1, {2, 1}), "ok");
  EXPECT_EQ(message(given.trace, 1, {-2, 1}), "prefill -2 is below 1");
  EXPECT_EQ(message(given.trace, 1, {2, 0}), "decode 0 is below 1");
  EXPECT_EQ(message(given.trace, 0, {2, 1}), "a workload's batch 0 is below 1");
  Trace nothing = given.trace;
  nothing.topk_ids.clear();
  nothing.token_ids.clear();
  nothing.sequence_offsets.assign(1, 0);
  nothing.prompt_lengths.clear();
  EXPECT_THAT(message(nothing, 1, {2, 1}), HasSubstr("has no tokens"));
}

}  // namespace
}  // namespace grace
