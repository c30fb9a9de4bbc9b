#include "grace/sim/simulate.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <set>

#include "grace/routing/routing.h"
#include "grace/sim/replay.h"
#include "grace/sim/spans.h"
#include "grace/sim/test_workload.h"

namespace grace {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// Round figures, so that a mistake shows; devices of three speeds.
Cluster timed_cluster(const std::vector<std::size_t>& devices_per_node) {
  Cluster cluster = cluster_of(devices_per_node);
  cluster.between_devices = {1e9, 2e-6};
  cluster.between_nodes = {1e8, 7e-6};
  cluster.flops_per_s = 1e10;
  cluster.memory_bytes_per_s = 1e9;
  int d = 0;
  for (auto& of_node : cluster.devices_of_node)
    for (Device& device : of_node) device.speed = 0.5 * (1 + d++ % 3);
  return cluster;
}

// Dense, MoE, MoE, dense windowed, MoE: the random traces' decoder layers 1, 2 and 5 among others.
ModelPrice some_model() {
  ModelPrice model;
  const PartPrice attention{3e5, 40, 90, 17, 2e5};
  for (const bool is_moe : {false, true, true, false, true})
    model.layers.push_back({attention, {is_moe ? 1e4 : 7e5, 0, 0, 0, is_moe ? 3e3 : 4e5}, is_moe, !is_moe});
  model.head = {5e6, 0, 0, 0, 3e6};
  model.window = 4;
  return model;
}

SimulateOptions some_options(int batch, Dispatch dispatch) {
  return {.batch = batch,
          .dispatch = dispatch,
          .sizes = {.hidden = 32, .expert_ffn = 16},
          .model = some_model(),
          .recorded_decode_passes = 2,
          .progress = {}};
}

// The slow twin: cursors in place of passes, sets in place of counters, and the published formula. Only the
// routers are the program's own.
class SlowSimulation {
 public:
  SlowSimulation(const Trace& trace, const Plan& plan, const Cluster& cluster, const SimulateOptions& options)
      : trace_(trace), plan_(plan), cluster_(cluster), options_(options), layers_(plan.layers.size()) {
    for (std::size_t m = 0; m < layers_.size(); ++m)
      for (int d = 0; d < devices(); ++d)
        routers_[{m, d}] =
            make_router(plan.routing, plan.layers[m], plan.num_experts, cluster, DeviceId(d)).value();
    for (Layer& layer : layers_) {
      layer.load.assign(static_cast<std::size_t>(devices()), 0);
      layer.compute_s = std::vector<double>(static_cast<std::size_t>(devices()), 0);
    }
  }

  struct Layer {
    double passes = 0, tokens = 0, x = 0, y = 0, used = 0, max_over_mean = 0, deviation = 0;
    double cross_vectors = 0, intra_vectors = 0;
    std::map<bool, LayerTime> time;  // by prefill
    std::vector<std::int64_t> load;
    std::vector<double> compute_s;
  };
  struct Fed {
    int device;
    std::int64_t token, position;
    int sequence;
  };

  void run() {
    const int batch = options_.batch == 0 ? trace_.num_sequences() : options_.batch;
    for (int begin = 0; begin < trace_.num_sequences(); begin += batch)
      run_batch(begin, std::min(begin + batch, trace_.num_sequences()));
  }

  std::vector<Layer> layers() const { return layers_; }
  std::map<bool, PhaseTime> phases() const { return phases_; }

 private:
  int devices() const { return cluster_.num_devices(); }
  int node(int device) const { return cluster_.node_of(DeviceId(device)).value; }
  int entry(int source, int to_node) const {
    const int size = static_cast<int>(cluster_.devices_of_node[static_cast<std::size_t>(to_node)].size());
    return cluster_.first_device_of(NodeId(to_node)).value + cluster_.local_index_of(DeviceId(source)) % size;
  }

  void run_batch(int begin, int end) {
    std::vector<std::int64_t> left, at;
    for (int s = begin; s < end; ++s) {
      at.push_back(trace_.sequence_offsets[static_cast<std::size_t>(s)]);
      left.push_back(trace_.sequence_offsets[static_cast<std::size_t>(s) + 1] - at.back());
    }
    for (bool prefill = true;; prefill = false) {
      std::vector<Fed> fed;
      for (int s = begin; s < end; ++s) {
        const auto i = static_cast<std::size_t>(s - begin);
        const std::int64_t wanted = prefill ? trace_.prompt_lengths[static_cast<std::size_t>(s)] : 1;
        for (std::int64_t n = 0; n < wanted && left[i] > 0; ++n, --left[i], ++at[i])
          fed.push_back({(s - begin) % devices(), at[i],
                         at[i] - trace_.sequence_offsets[static_cast<std::size_t>(s)], s});
      }
      if (fed.empty() && !prefill) return;
      if (fed.empty()) continue;
      ++phases_[prefill].passes;
      phases_[prefill].tokens += static_cast<std::int64_t>(fed.size());
      for (std::size_t m = 0; m < layers_.size(); ++m) run_layer(m, fed, prefill);
      run_dense(fed, prefill);
    }
  }

  void run_layer(std::size_t m, const std::vector<Fed>& fed, bool prefill) {
    std::map<std::pair<int, int>, double> copies;  // device, expert -> assignments
    std::map<std::pair<int, int>, double> sent;    // from, to -> vectors
    std::map<int, double> node_out, node_in, device_in;
    std::map<int, double> load;
    Layer& sum = layers_[m];
    double assignments = 0;
    for (const Fed& one : fed) {
      const auto choices = trace_.choices(one.token, MoeOrdinal(static_cast<std::int32_t>(m)));
      std::vector<std::int32_t> chosen(choices.size());
      routers_[{m, one.device}]->route(choices, trace_.experts_per_token, chosen);
      std::set<int> used, nodes;
      for (std::size_t k = 0; k < choices.size(); ++k) {
        if (chosen[k] < 0) continue;
        used.insert(chosen[k]);
        nodes.insert(node(chosen[k]));
        ++copies[{chosen[k], choices[k]}];
        ++load[chosen[k]];
        ++assignments;
        if (options_.dispatch == Dispatch::kFlat) ++sent[{one.device, chosen[k]}];
      }
      if (used.empty()) continue;
      ++sum.tokens;
      sum.used += static_cast<double>(used.size());
      nodes.erase(node(one.device));
      sum.x += static_cast<double>(nodes.size());
      for (const int to : nodes)
        if (options_.dispatch == Dispatch::kTwoStage) ++sent[{one.device, entry(one.device, to)}];
      for (const int to : used) {
        const int from = entry(one.device, node(to));
        sum.y += from != to ? 1 : 0;
        if (options_.dispatch == Dispatch::kTwoStage) ++sent[{from, to}];
        if (options_.dispatch == Dispatch::kPerDevice) ++sent[{one.device, to}];
      }
    }
    if (assignments == 0) return;
    for (const auto& [ends, vectors] : sent) {
      const auto& [from, to] = ends;
      if (from == to) continue;
      if (node(from) == node(to)) {
        device_in[to] += vectors;
        sum.intra_vectors += vectors;
      } else {
        node_out[node(from)] += vectors;
        node_in[node(to)] += vectors;
        sum.cross_vectors += vectors;
      }
    }
    ++sum.passes;
    const double mean = assignments / devices();
    double most = 0, squares = 0;
    for (int d = 0; d < devices(); ++d) {
      most = std::max(most, load[d]);
      squares += (load[d] - mean) * (load[d] - mean);
      sum.load[static_cast<std::size_t>(d)] += static_cast<std::int64_t>(load[d]);
    }
    sum.max_over_mean += most / mean;
    sum.deviation += std::sqrt(squares / devices()) / mean;
    sum.time[prefill] += time_of(sum, copies, node_out, node_in, device_in);
  }

  LayerTime time_of(Layer& sum, const std::map<std::pair<int, int>, double>& copies,
                    const std::map<int, double>& node_out, const std::map<int, double>& node_in,
                    const std::map<int, double>& device_in) const {
    const auto highest = [](const std::map<int, double>& of) {
      double most = 0;
      for (const auto& [key, value] : of) most = std::max(most, value);
      return most;
    };
    const double cross = std::max(highest(node_out), highest(node_in)), intra = highest(device_in);
    LayerTime time;
    time.cross_node_s = 2 * cross * 64 / 1e8;
    time.intra_node_s = 2 * intra * 64 / 1e9;
    time.latency_s = (cross > 0 ? 14e-6 : 0) + (intra > 0 ? 4e-6 : 0);
    std::map<int, double> compute;
    for (const auto& [copy, n] : copies)
      compute[copy.first] += std::max(3 * 32 * 16 * 2 / 1e9, n * 2 * 3 * 32 * 16 / 1e10) /
                             cluster_.device(DeviceId(copy.first)).speed;
    for (const auto& [d, seconds] : compute) {
      sum.compute_s[static_cast<std::size_t>(d)] += seconds;
      time.compute_s = std::max(time.compute_s, seconds);
      time.mean_compute_s += seconds / devices();
    }
    return time;
  }

  void run_dense(const std::vector<Fed>& fed, bool prefill) {
    std::map<int, double> tokens, keys, windowed;
    std::map<int, std::set<int>> sequences;
    for (const Fed& one : fed) {
      ++tokens[one.device];
      keys[one.device] += static_cast<double>(one.position + 1);
      windowed[one.device] += std::min(4.0, static_cast<double>(one.position + 1));
      sequences[one.device].insert(one.sequence);
    }
    const auto slowest = [&](auto&& seconds) {
      double most = 0;
      for (const auto& [d, n] : tokens)
        most = std::max(most, seconds(d) / cluster_.device(DeviceId(d)).speed);
      return most;
    };
    const auto attention = [&](std::map<int, double>& seen) {
      return slowest([&](int d) {
        const double flops = 3e5 * tokens[d] + (prefill ? 40 : 90) * seen[d];
        return std::max(flops / 1e10, (2e5 + (prefill ? 0 : 17 * seen[d])) / 1e9);
      });
    };
    PhaseTime& phase = phases_[prefill];
    phase.attention_s += 3 * attention(keys) + 2 * attention(windowed);
    phase.dense_ffn_s += 2 * slowest([&](int d) { return std::max(7e5 * tokens[d] / 1e10, 4e5 / 1e9); });
    phase.beside_experts_s += 3 * slowest([&](int d) { return std::max(1e4 * tokens[d] / 1e10, 3e3 / 1e9); });
    phase.head_s += slowest(
        [&](int d) { return std::max(5e6 * static_cast<double>(sequences[d].size()) / 1e10, 3e6 / 1e9); });
  }

  const Trace& trace_;
  const Plan& plan_;
  const Cluster& cluster_;
  const SimulateOptions& options_;
  std::map<std::pair<std::size_t, int>, std::unique_ptr<Router>> routers_;
  std::vector<Layer> layers_;
  std::map<bool, PhaseTime> phases_;
};

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

struct Case {
  explicit Case(std::uint64_t seed) {
    Rng rng(seed);
    const std::vector<std::vector<std::size_t>> shapes{{1}, {2, 2}, {1, 3}, {4, 4}, {3, 1, 2}};
    cluster = timed_cluster(shapes[rng.below(shapes.size())]);
    trace = random_trace(rng, static_cast<int>(rng.below(23)));
    plan = random_plan(rng, trace, cluster);
    batch = static_cast<int>(rng.below(9));
  }
  Cluster cluster;
  Trace trace;
  Plan plan;
  int batch;
};

class ASimulation : public testing::TestWithParam<std::uint64_t> {};

TEST_P(ASimulation, EqualsItsSlowTwin) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  const Case given(GetParam());
  ThreadPool pool(1);
  for (const Dispatch dispatch : {Dispatch::kTwoStage, Dispatch::kPerDevice, Dispatch::kFlat}) {
    SCOPED_TRACE(name_of(dispatch));
    const SimulateOptions options = some_options(given.batch, dispatch);
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
}

TEST_P(ASimulation, SendsTheVectorsThatAReplaySends) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  const Case given(GetParam());
  ThreadPool pool(2);
  for (const Dispatch dispatch : {Dispatch::kPerDevice, Dispatch::kFlat}) {
    const SimulateOptions options = some_options(given.batch, dispatch);
    const Simulation got = simulate(given.trace, given.plan, given.cluster, options, pool).value();
    const Replay want = replay(given.trace, given.plan, given.cluster,
                               {.batch = given.batch, .dispatch = dispatch, .bytes_per_vector = 64}, pool)
                            .value();
    for (std::size_t m = 0; m < got.layers.size(); ++m) {
      const LayerTraffic& traffic = want.layers[m].traffic;
      EXPECT_EQ(got.layers[m].cross_node_vectors * 64, traffic.dispatch.cross_node_payload);
      EXPECT_EQ(got.layers[m].intra_node_vectors * 64, traffic.dispatch.intra_node_payload);
      EXPECT_EQ(got.layers[m].load, traffic.load);
      EXPECT_EQ(got.layers[m].passes, want.layers[m].steps);
      if (dispatch != Dispatch::kFlat) continue;
      EXPECT_EQ(got.layers[m].cross_node_vectors * 64, traffic.combine.cross_node_payload);
    }
  }
}

TEST_P(ASimulation, IsTheSameToTheBitAtAnyThreadCount) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  const Case given(GetParam());
  ThreadPool one(1), three(3);
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

TEST_P(ASimulation, IsDrawnAsLongAsItTakes) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  const Case given(GetParam());
  ThreadPool pool(1);
  SimulateOptions options = some_options(given.batch, Dispatch::kTwoStage);
  options.recorded_decode_passes = 3;
  const Simulation all = simulate(given.trace, given.plan, given.cluster, options, pool).value();
  EXPECT_LE(all.records.size(), 4U);
  double total_s = 0;
  for (const PassRecord& record : all.records) {
    for (const LayerTime& time : record.moe) total_s += time.total_s();
    const auto devices = record.head_s.size();
    for (const auto* parts : {&record.attention_s, &record.ffn_s, &record.head_s})
      for (std::size_t i = 0; i < parts->size(); i += devices)
        total_s += *std::max_element(parts->begin() + static_cast<std::ptrdiff_t>(i),
                                     parts->begin() + static_cast<std::ptrdiff_t>(i + devices));
  }
  const SimulatedSpans drawn = spans_of(all, options.model, 1'000'000);
  EXPECT_TRUE(drawn.all);
  double end_s = 0;
  std::map<int, double> free_at;
  for (const SimulatedSpan& span : drawn.spans) {
    EXPECT_LT(span.begin_s, span.end_s);
    EXPECT_GE(span.begin_s, free_at[span.device] - 1e-12) << "two parts at once on device " << span.device;
    free_at[span.device] = span.end_s;
    end_s = std::max(end_s, span.end_s);
  }
  expect_near(end_s, total_s);
  const SimulatedSpans few = spans_of(all, options.model, 40);
  EXPECT_LE(few.spans.size(), 40U);
  EXPECT_EQ(few.all, drawn.spans.size() <= few.spans.size());
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
  const SimulateOptions options = some_options(0, Dispatch::kTwoStage);
  const Simulation got = simulate(trace, plan, cluster, options, pool).value();
  EXPECT_EQ(got.layers.size(), 3U);
  EXPECT_EQ(got.whole().total_s(), 0);
  EXPECT_EQ(got.whole().all_to_all_of_whole(), 0);
  EXPECT_EQ(got.whole().all_to_all_of_moe_layers(), 0);
  EXPECT_EQ(got.layers[0].figures.load_max_over_mean, 1);
  EXPECT_TRUE(spans_of(got, options.model, 100).spans.empty());
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

TEST(AReplayOfTwoStages, IsRefused) {
  const Case given(4);
  ThreadPool pool(1);
  const auto got = replay(given.trace, given.plan, given.cluster,
                          {.batch = 0, .dispatch = Dispatch::kTwoStage, .bytes_per_vector = 1}, pool);
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().kind, ErrorKind::kUnsupported);
}

}  // namespace
}  // namespace grace
