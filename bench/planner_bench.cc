// What planning costs: counting a trace, a whole plan, and `joint` at the sizes of real models. Each proves
// its result before it is timed.
#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "grace/affinity/affinity.h"
#include "grace/base/rng.h"
#include "grace/planner/judge.h"
#include "grace/planner/planner.h"
#include "grace/trace/synthetic.h"

namespace grace {
namespace {

constexpr int kTokens = 4096;
constexpr int kLayers = 4;
constexpr int kTopK = 8;

Trace topic_trace(int num_experts) {
  Rng rng(1);
  Trace trace;
  trace.model = "synthetic";
  trace.num_experts = num_experts;
  trace.experts_per_token = kTopK;
  for (int m = 0; m < kLayers; ++m) trace.decoder_layers.push_back(m);
  trace.sequence_offsets = {0, kTokens};
  std::vector<std::uint64_t> seen(static_cast<std::size_t>(num_experts), 0);
  for (std::uint64_t row = 1; row <= static_cast<std::uint64_t>(kTokens) * kLayers; ++row) {
    const std::uint64_t topic = rng.below(8);
    for (int k = 0; k < kTopK;) {
      const std::uint64_t e = rng.below(seen.size());
      if (seen[e] == row || (e % 8 != topic && rng.below(3) != 0)) continue;
      seen[e] = row;
      trace.topk_ids.push_back(static_cast<std::uint16_t>(e));
      ++k;
    }
  }
  return trace;
}

Cluster two_by_four() {
  Cluster cluster;
  cluster.name = "2x4";
  cluster.devices_of_node.assign(2, std::vector<Device>(4));
  return cluster;
}

// Every ordered pair of every token, added one by one.
std::vector<std::int64_t> count_reference(const Trace& trace, std::size_t layer) {
  const auto num_experts = static_cast<std::size_t>(trace.num_experts);
  std::vector<std::int64_t> affinity(num_experts * num_experts, 0);
  for (std::size_t t = 0; t < kTokens; ++t) {
    const std::uint16_t* choice = trace.topk_ids.data() + (t * kLayers + layer) * kTopK;
    for (int a = 0; a < kTopK; ++a)
      for (int b = 0; b < kTopK; ++b)
        if (a != b) ++affinity[choice[a] * num_experts + choice[b]];
  }
  return affinity;
}

void BM_CountLayers(benchmark::State& state) {
  const Trace trace = topic_trace(static_cast<int>(state.range(0)));
  ThreadPool pool(1);
  const std::vector<LayerStats> layers = count_layers(trace, pool);
  for (std::size_t m = 0; m < layers.size(); ++m) {
    if (layers[m].affinity != count_reference(trace, m)) {
      state.SkipWithError("count_layers differs from the reference");
      return;
    }
  }
  for (auto _ : state) benchmark::DoNotOptimize(count_layers(trace, pool));
  state.SetItemsProcessed(state.iterations() * kTokens * kLayers);
  state.SetBytesProcessed(state.iterations() *
                          static_cast<std::int64_t>(trace.topk_ids.size() * sizeof(std::uint16_t)));
}
BENCHMARK(BM_CountLayers)->Arg(64)->Arg(128)->Arg(256)->Unit(benchmark::kMillisecond);

void BM_MakePlan(benchmark::State& state) {
  const Trace trace = topic_trace(static_cast<int>(state.range(0)));
  const Cluster cluster = two_by_four();
  ThreadPool pool(static_cast<int>(state.range(1)));
  const Result<PlanResult> result = make_plan(trace, cluster, {}, pool);
  if (!result.ok() || !violations(result.value().plan, cluster).empty()) {
    state.SkipWithError("the plan is not sound");
    return;
  }
  for (auto _ : state) benchmark::DoNotOptimize(make_plan(trace, cluster, {}, pool));
  state.SetItemsProcessed(state.iterations() * kLayers);
}
BENCHMARK(BM_MakePlan)
    ->ArgNames({"experts", "threads"})
    ->ArgsProduct({{64, 128, 256}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// Shapes of DeepSeek-V2-Lite on 2x4 and DeepSeek-V3 on 4x8.
struct Shape {
  int layers, experts, top_k;
  std::int64_t tokens;
  std::size_t nodes, devices_per_node;
};
constexpr std::array kShapes = {Shape{26, 64, 6, 16'384, 2, 4}, Shape{58, 256, 8, 16'384, 4, 8}};

Trace trace_of(const Shape& shape, int layers, ThreadPool& pool) {
  SyntheticOptions options;
  options.moe_layers = layers;
  options.num_experts = shape.experts;
  options.experts_per_token = shape.top_k;
  options.tokens = shape.tokens;
  options.clusters = shape.experts / 8;
  return synthetic_trace(options, pool).value();
}

double judged(const Trace& trace, const Cluster& cluster, const PlanOptions& options, ThreadPool& pool) {
  const Plan plan = make_plan(trace, cluster, options, pool).value().plan;
  std::vector<int> sequences(static_cast<std::size_t>(trace.num_sequences()));
  std::iota(sequences.begin(), sequences.end(), 0);
  const JudgeTokens tokens = judge_tokens(trace, sequences, cluster.num_devices(), 1);
  return mean_of(judge(plan, trace, tokens, cluster, {}, pool).value()).judge(kSlowYardstick);
}

// Arguments: the shape, and the effort in percent. Proved on one layer: better than the default placement.
void BM_Joint(benchmark::State& state) {
  const Shape& shape = kShapes[static_cast<std::size_t>(state.range(0))];
  ThreadPool pool(2);
  Cluster cluster;
  cluster.name = std::to_string(shape.nodes) + "x" + std::to_string(shape.devices_per_node);
  cluster.devices_of_node.assign(shape.nodes, std::vector<Device>(shape.devices_per_node));
  PlanOptions options;
  options.strategy = "joint-slow";
  options.effort = static_cast<double>(state.range(1)) / 100;
  const Trace one = trace_of(shape, 1, pool);
  PlanOptions plain;
  plain.strategy = "vanilla";
  const double found = judged(one, cluster, options, pool), before = judged(one, cluster, plain, pool);
  if (!(found < before)) {
    state.SkipWithError("joint is no better than the default placement");
    return;
  }
  const Trace trace = trace_of(shape, shape.layers, pool);
  for (auto _ : state) benchmark::DoNotOptimize(make_plan(trace, cluster, options, pool));
  state.counters["judge_slow"] = found;
  state.counters["judge_slow_default"] = before;
  state.SetItemsProcessed(state.iterations() * shape.layers);
}
BENCHMARK(BM_Joint)
    ->ArgNames({"shape", "effort%"})
    ->Args({0, 25})
    ->Args({0, 100})
    ->Args({0, 400})
    ->Args({1, 25})
    ->Args({1, 100})
    ->Iterations(1)
    ->UseRealTime()
    ->Unit(benchmark::kSecond);

}  // namespace
}  // namespace grace

BENCHMARK_MAIN();
