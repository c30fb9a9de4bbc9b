// What planning costs: counting a trace, and a whole plan. Each proves its result before it is timed.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "grace/affinity/affinity.h"
#include "grace/base/rng.h"
#include "grace/planner/planner.h"

namespace grace {
namespace {

constexpr int kTokens = 4096;
constexpr int kLayers = 4;
constexpr int kTopK = 8;

Trace synthetic_trace(int num_experts) {
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
  const Trace trace = synthetic_trace(static_cast<int>(state.range(0)));
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
  const Trace trace = synthetic_trace(static_cast<int>(state.range(0)));
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

}  // namespace
}  // namespace grace

BENCHMARK_MAIN();
