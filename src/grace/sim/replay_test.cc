#include "grace/sim/replay.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>

#include "grace/routing/routing.h"
#include "grace/sim/test_workload.h"

namespace grace {
namespace {

// The slow twin: one token at a time, as a story of cursors rather than a list of steps, and every byte
// written down.
class SlowReplay {
 public:
  SlowReplay(const Trace& trace, const Plan& plan, const Cluster& cluster, const ReplayOptions& options)
      : trace_(trace), plan_(plan), cluster_(cluster), options_(options), totals_(plan.layers.size()) {
    for (std::size_t m = 0; m < plan.layers.size(); ++m)
      for (int d = 0; d < cluster.num_devices(); ++d)
        routers_[{m, d}] =
            make_router(plan.routing, plan.layers[m], plan.num_experts, cluster, DeviceId(d)).value();
    for (LayerReplay& total : totals_) {
      total.traffic.load.assign(static_cast<std::size_t>(cluster.num_devices()), 0);
      total.mean_max_over_mean = 0;
    }
  }

  Replay run() {
    const int batch = options_.batch == 0 ? trace_.num_sequences() : options_.batch;
    for (int begin = 0; begin < trace_.num_sequences(); begin += batch)
      run_batch(begin, std::min(begin + batch, trace_.num_sequences()));
    for (LayerReplay& total : totals_) {
      total.mean_max_over_mean =
          total.steps == 0 ? 1 : total.mean_max_over_mean / static_cast<double>(total.steps);
      if (total.steps > 0) total.mean_load_deviation /= static_cast<double>(total.steps);
    }
    return {totals_, steps_};
  }

 private:
  void run_batch(int begin, int end) {
    std::vector<std::int64_t> cursor;
    for (int s = begin; s < end; ++s) cursor.push_back(trace_.sequence_offsets[static_cast<std::size_t>(s)]);
    bool prefill = true;
    for (;;) {
      std::vector<std::pair<int, std::int64_t>> fed;  // device, token
      for (int s = begin; s < end; ++s) {
        std::int64_t& at = cursor[static_cast<std::size_t>(s - begin)];
        const std::int64_t stop = trace_.sequence_offsets[static_cast<std::size_t>(s) + 1];
        for (std::int64_t n = prefill ? trace_.prompt_lengths[static_cast<std::size_t>(s)] : 1;
             n > 0 && at < stop; --n)
          fed.emplace_back((s - begin) % cluster_.num_devices(), at++);
      }
      if (!prefill && fed.empty()) return;
      for (std::size_t m = 0; m < totals_.size(); ++m) feed(m, fed);
      ++steps_;
      prefill = false;
    }
  }

  void feed(std::size_t m, const std::vector<std::pair<int, std::int64_t>>& fed) {
    LayerTraffic& sum = totals_[m].traffic;
    std::vector<std::int64_t> load(sum.load.size(), 0);
    for (const auto& [source, token] : fed) {
      std::vector<std::int32_t> devices(static_cast<std::size_t>(trace_.experts_per_token));
      routers_[{m, source}]->route(trace_.choices(token, MoeOrdinal(static_cast<std::int32_t>(m))),
                                   trace_.experts_per_token, devices);
      std::map<std::int32_t, std::int64_t> experts_on;
      for (const std::int32_t d : devices)
        if (d >= 0) ++experts_on[d];
      for (const auto& [d, experts] : experts_on) {
        load[static_cast<std::size_t>(d)] += experts;
        if (d == source) continue;
        const bool near = cluster_.node_of(DeviceId(d)) == cluster_.node_of(DeviceId(source));
        const std::int64_t vectors = options_.dispatch == Dispatch::kFlat ? experts : 1;
        (near ? sum.dispatch.intra_node_payload : sum.dispatch.cross_node_payload) +=
            vectors * options_.bytes_per_vector;
        (near ? sum.dispatch.intra_node_header : sum.dispatch.cross_node_header) += vectors * 8 + experts * 4;
        (near ? sum.combine.intra_node_payload : sum.combine.cross_node_payload) +=
            experts * options_.bytes_per_vector;
      }
    }
    for (std::size_t d = 0; d < load.size(); ++d) sum.load[d] += load[d];
    if (std::accumulate(load.begin(), load.end(), std::int64_t{0}) == 0) return;
    ++totals_[m].steps;
    totals_[m].mean_max_over_mean += max_over_mean(load);
    totals_[m].mean_load_deviation += standard_deviation(load);
  }

  const Trace& trace_;
  const Plan& plan_;
  const Cluster& cluster_;
  const ReplayOptions& options_;
  std::map<std::pair<std::size_t, int>, std::unique_ptr<Router>> routers_;
  std::vector<LayerReplay> totals_;
  std::int64_t steps_ = 0;
};

void expect_same(const Replay& got, const Replay& want) {
  EXPECT_EQ(got.steps, want.steps);
  ASSERT_EQ(got.layers.size(), want.layers.size());
  for (std::size_t m = 0; m < got.layers.size(); ++m) {
    SCOPED_TRACE("moe layer " + std::to_string(m));
    EXPECT_EQ(got.layers[m].traffic.dispatch, want.layers[m].traffic.dispatch);
    EXPECT_EQ(got.layers[m].traffic.combine, want.layers[m].traffic.combine);
    EXPECT_EQ(got.layers[m].traffic.load, want.layers[m].traffic.load);
    EXPECT_EQ(got.layers[m].steps, want.layers[m].steps);
    EXPECT_NEAR(got.layers[m].mean_max_over_mean, want.layers[m].mean_max_over_mean, 1e-9);
    EXPECT_NEAR(got.layers[m].mean_load_deviation, want.layers[m].mean_load_deviation, 1e-9);
  }
}

class AReplay : public testing::TestWithParam<std::uint64_t> {};

TEST_P(AReplay, EqualsItsSlowTwinAtAnyThreadCount) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  const std::vector<std::vector<std::size_t>> shapes{{1}, {2, 2}, {1, 3}, {4, 4}};
  const Cluster cluster = cluster_of(shapes[rng.below(shapes.size())]);
  const Trace trace = random_trace(rng, static_cast<int>(rng.below(23)));
  const Plan plan = random_plan(rng, trace, cluster);
  ASSERT_THAT(violations(plan, cluster), testing::IsEmpty());
  const ReplayOptions options{.batch = static_cast<int>(rng.below(9)),
                              .dispatch = rng.below(2) == 0 ? Dispatch::kFlat : Dispatch::kPerDevice,
                              .bytes_per_vector = 512};
  const Replay want = SlowReplay(trace, plan, cluster, options).run();
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    const Result<Replay> got = replay(trace, plan, cluster, options, pool);
    ASSERT_TRUE(got.ok()) << got.error().message;
    expect_same(got.value(), want);
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, AReplay, testing::Range<std::uint64_t>(0, 100));

TEST(AReplay, FeedsPromptsFirstAndThenOneTokenAtATime) {
  // Two sequences on two nodes of one device, one expert each; prompts of 2 and 1 tokens, then 1 and 3
  // decoded ones.
  Trace trace;
  trace.model = "test";
  trace.num_experts = 2;
  trace.experts_per_token = 1;
  trace.decoder_layers = {0};
  trace.phase = Phase::kMixed;
  trace.sequence_offsets = {0, 3, 7};
  trace.prompt_lengths = {2, 1};
  trace.topk_ids = {0, 1, 1, 0, 1, 1, 0};
  const Cluster cluster = cluster_of({1, 1});
  ThreadPool pool(1);
  const Plan plan = vanilla_plan("test", 2, {0}, cluster);
  const Replay got = replay(trace, plan, cluster, {.bytes_per_vector = 100}, pool).value();
  EXPECT_EQ(got.steps, 4);
  const LayerReplay& layer = got.layers.at(0);
  // Sequence 0 leaves device 0 for tokens 1 and 2, sequence 1 leaves device 1 for its first and last.
  EXPECT_EQ(layer.traffic.dispatch, (LevelBytes{.cross_node_payload = 400, .cross_node_header = 4 * 12}));
  EXPECT_EQ(layer.traffic.combine, (LevelBytes{.cross_node_payload = 400}));
  EXPECT_THAT(layer.traffic.load, testing::ElementsAre(3, 4));
  // Loads by step: {2, 1}, {0, 2}, {0, 1}, {1, 0}.
  EXPECT_EQ(layer.steps, 4);
  EXPECT_DOUBLE_EQ(layer.mean_max_over_mean, (4.0 / 3 + 2 + 2 + 2) / 4);
  EXPECT_DOUBLE_EQ(layer.mean_load_deviation, (0.5 + 1 + 0.5 + 0.5) / 4);
}

TEST(AReplay, OfAnEmptyTraceIsEmpty) {
  Rng rng(1);
  const Trace trace = random_trace(rng, 0);
  const Cluster cluster = cluster_of({2});
  ThreadPool pool(1);
  const Replay got =
      replay(trace, random_plan(rng, trace, cluster), cluster, {.bytes_per_vector = 8}, pool).value();
  EXPECT_EQ(got.steps, 0);
  EXPECT_EQ(got.layers.at(0).mean_max_over_mean, 1);
  EXPECT_THAT(got.layers.at(0).traffic.load, testing::ElementsAre(0, 0));
}

TEST(AReplay, RefusesWhatDoesNotFitTogether) {
  Rng rng(2);
  const Trace trace = random_trace(rng, 5);
  const Cluster cluster = cluster_of({2, 2});
  ThreadPool pool(1);
  const Plan plan = random_plan(rng, trace, cluster);
  const auto kind_of = [&](const Plan& p, const Cluster& c, const ReplayOptions& options) {
    const Result<Replay> got = replay(trace, p, c, options, pool);
    EXPECT_FALSE(got.ok());
    return got.ok() ? ErrorKind::kInternal : got.error().kind;
  };
  EXPECT_EQ(kind_of(plan, cluster_of({4}), {}), ErrorKind::kInvalidInput);
  EXPECT_EQ(kind_of(plan, cluster, {.batch = -1}), ErrorKind::kInvalidInput);
  EXPECT_EQ(kind_of(plan, cluster, {.bytes_per_vector = -1}), ErrorKind::kInvalidInput);
  EXPECT_EQ(kind_of(vanilla_plan("test", trace.num_experts + 1, trace.decoder_layers, cluster), cluster, {}),
            ErrorKind::kInvalidInput);
  Plan other = plan;
  other.routing = "nearest";
  EXPECT_EQ(kind_of(other, cluster, {}), ErrorKind::kInvalidInput);
}

}  // namespace
}  // namespace grace
