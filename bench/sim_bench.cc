// What simulating costs: DeepSeek-V3's shape, 58 layers of 256 experts, top-8, on four nodes of eight. Proved
// before it is timed: the loads and vectors of a short trace, counted token by token with sets.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "grace/routing/routing.h"
#include "grace/sim/simulate.h"
#include "grace/trace/synthetic.h"

namespace grace {
namespace {

int cores() { return static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); }

Trace trace_of(std::int64_t tokens) {
  SyntheticOptions options;
  options.moe_layers = 58;
  options.dense_layers = 3;
  options.num_experts = 256;
  options.experts_per_token = 8;
  options.tokens = tokens;
  options.zipf = 0.8;
  ThreadPool pool(cores());
  return synthetic_trace(options, pool).value();
}

// Every eighth expert has a copy half the machine away; routing alternates between near copies, or covers.
Plan plan_of(const Trace& trace, const Cluster& cluster, const char* routing) {
  Plan plan = vanilla_plan(trace.model, trace.num_experts, trace.decoder_layers, cluster);
  plan.routing = routing;
  const auto devices = static_cast<std::size_t>(cluster.num_devices());
  for (LayerPlan& layer : plan.layers) {
    layer.cover = {16, 0.5, std::vector<double>(devices, 0.25)};
    for (std::size_t d = 0; d < devices; ++d)
      layer.replicas_of_device[(d + devices / 2) % devices].push_back(layer.primaries_of_device[d].front());
  }
  return plan;
}

// Vectors across nodes and inside them of one layer, sequence s on device s mod D.
std::pair<std::int64_t, std::int64_t> count_slowly(const Trace& trace, const Plan& plan,
                                                   const Cluster& cluster, std::size_t m) {
  std::int64_t cross = 0, intra = 0;
  for (int d = 0; d < cluster.num_devices(); ++d) {
    const auto router =
        make_router(plan.routing, plan.layers[m], plan.num_experts, cluster, DeviceId(d)).value();
    for (int s = d; s < trace.num_sequences(); s += cluster.num_devices()) {
      const auto first = trace.sequence_offsets[static_cast<std::size_t>(s)];
      for (auto token = first; token < trace.sequence_offsets[static_cast<std::size_t>(s) + 1]; ++token) {
        std::vector<std::int32_t> chosen(static_cast<std::size_t>(trace.experts_per_token));
        router->route(trace.choices(token, MoeOrdinal(static_cast<std::int32_t>(m))), trace.experts_per_token,
                      chosen);
        std::set<int> nodes;
        for (const int to : std::set<std::int32_t>(chosen.begin(), chosen.end())) {
          nodes.insert(to / 8);
          intra += to % 8 != d % 8 ? 1 : 0;
        }
        nodes.erase(d / 8);
        cross += static_cast<std::int64_t>(nodes.size());
      }
    }
  }
  return {cross, intra};
}

bool is_proved(const Cluster& cluster, const char* routing, ThreadPool& pool) {
  const Trace trace = trace_of(20'000);
  const Plan plan = plan_of(trace, cluster, routing);
  const Result<Simulation> result = simulate(trace, plan, cluster, {}, pool);
  if (!result.ok()) return false;
  for (std::size_t m = 0; m < plan.layers.size(); m += 19) {
    const LayerSimulation& layer = result.value().layers[m];
    if (std::pair(layer.cross_node_vectors, layer.intra_node_vectors) !=
        count_slowly(trace, plan, cluster, m))
      return false;
  }
  return true;
}

void simulate_prefill(benchmark::State& state, const char* routing) {
  const Cluster cluster = parse_cluster("h100:4x8").value();
  ThreadPool pool(static_cast<int>(state.range(1)));
  if (!is_proved(cluster, routing, pool)) {
    state.SkipWithError("the vectors are not those counted token by token");
    return;
  }
  const Trace trace = trace_of(state.range(0));
  const Plan plan = plan_of(trace, cluster, routing);
  SimulateOptions options;
  options.batch = 256;
  options.sizes = {.hidden = 7168, .expert_ffn = 2048};
  for (auto _ : state) benchmark::DoNotOptimize(simulate(trace, plan, cluster, options, pool));
  state.SetItemsProcessed(state.iterations() * trace.num_tokens() * trace.num_moe_layers());
}

BENCHMARK_CAPTURE(simulate_prefill, tar, "tar")
    ->ArgNames({"tokens", "threads"})
    ->Args({100'000, 1})
    ->Args({100'000, 2})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(simulate_prefill, cover, "cover")
    ->ArgNames({"tokens", "threads"})
    ->Args({100'000, 2})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(simulate_prefill, whole_tar, "tar")
    ->ArgNames({"tokens", "threads"})
    ->Args({1'000'000, 2})
    ->UseRealTime()
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace grace

BENCHMARK_MAIN();
