// What routing costs a token and layer: E = 64, two nodes of four devices, half of the experts with replicas.
// `tar` and `wrr` are proved against a router that looks everything up anew for each choice, `cover` against
// exact covers.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "grace/base/rng.h"
#include "grace/planner/joint/exact_cover.h"
#include "grace/routing/cover.h"
#include "grace/routing/routing.h"

namespace grace {
namespace {

constexpr int kNumExperts = 64;
constexpr int kTopK = 8;
constexpr std::size_t kTokens = 2048;

Cluster two_nodes_of_four() {
  Cluster cluster;
  cluster.devices_of_node.assign(2, std::vector<Device>(4));
  return cluster;
}

LayerPlan layer_with_replicas(const Cluster& cluster, Rng& rng) {
  LayerPlan layer = vanilla_plan("bench", kNumExperts, {0}, cluster).layers.front();
  const auto devices = layer.primaries_of_device.size();
  layer.predicted_load.clear();
  for (std::size_t d = 0; d < devices; ++d)
    layer.predicted_load.push_back(static_cast<double>(100 + rng.below(900)));
  for (int e = 0; e < kNumExperts; e += 2) {
    const std::size_t primary = static_cast<std::size_t>(e) * devices / kNumExperts;
    for (std::size_t step = 1; step <= 3; ++step)
      layer.replicas_of_device[(primary + 2 * step) % devices].push_back(ExpertId(e));
  }
  for (std::vector<ExpertId>& replicas : layer.replicas_of_device) std::ranges::sort(replicas);
  return layer;
}

std::vector<std::uint16_t> random_choices(Rng& rng, int top_k) {
  std::vector<std::uint16_t> experts(kNumExperts);
  for (std::size_t e = 0; e < experts.size(); ++e) experts[e] = static_cast<std::uint16_t>(e);
  std::vector<std::uint16_t> choices;
  for (std::size_t t = 0; t < kTokens; ++t) {
    rng.shuffle(std::span(experts));
    choices.insert(choices.end(), experts.begin(), experts.begin() + top_k);
  }
  return choices;
}

// The slow twin of `tar` and `wrr`.
std::vector<std::int32_t> route_slowly(bool nearest, const LayerPlan& layer, const Cluster& cluster,
                                       DeviceId source, const std::vector<std::uint16_t>& choices) {
  const double least = *std::ranges::min_element(layer.predicted_load);
  std::map<std::pair<std::uint16_t, DeviceId>, std::int64_t> credit;
  std::vector<std::int32_t> chosen;
  for (const std::uint16_t expert : choices) {
    std::vector<DeviceId> hosts = layer.hosts_of_expert(kNumExperts)[expert];
    std::ranges::sort(hosts);
    std::vector<DeviceId> candidates;
    const auto keep = [&](auto&& is_near) {
      if (candidates.empty()) std::ranges::copy_if(hosts, std::back_inserter(candidates), is_near);
    };
    if (nearest) keep([&](DeviceId d) { return d == source; });
    if (nearest) keep([&](DeviceId d) { return cluster.node_of(d) == cluster.node_of(source); });
    keep([](DeviceId) { return true; });
    std::int64_t sum = 0;
    DeviceId best = candidates.front();
    for (const DeviceId d : candidates) {
      const std::int64_t weight = std::llround(4294967296.0 * (least / layer.predicted_load[d.idx()]));
      sum += weight;
      credit[{expert, d}] += weight;
      if (credit[{expert, d}] > credit[{expert, best}]) best = d;
    }
    credit[{expert, best}] -= sum;
    chosen.push_back(best.value);
  }
  return chosen;
}

void count_tokens(benchmark::State& state) {
  const auto tokens = static_cast<std::int64_t>(kTokens);
  state.SetItemsProcessed(state.iterations() * tokens);
  state.counters["s_per_token"] =
      benchmark::Counter(static_cast<double>(state.iterations() * tokens),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void route_batch(benchmark::State& state, const char* policy) {
  Rng rng(1);
  const Cluster cluster = two_nodes_of_four();
  const LayerPlan layer = layer_with_replicas(cluster, rng);
  const std::vector<std::uint16_t> choices = random_choices(rng, kTopK);
  const DeviceId source(5);
  const auto fresh_router = [&] { return make_router(policy, layer, kNumExperts, cluster, source).value(); };
  std::vector<std::int32_t> chosen(choices.size());
  fresh_router()->route(choices, kTopK, chosen);
  if (chosen != route_slowly(std::string(policy) == "tar", layer, cluster, source, choices)) {
    state.SkipWithError("the router differs from its slow twin");
    return;
  }
  const std::unique_ptr<Router> router = fresh_router();
  for (auto _ : state) {
    router->route(choices, kTopK, chosen);
    benchmark::DoNotOptimize(chosen.data());
    benchmark::ClobberMemory();
  }
  count_tokens(state);
}

constexpr double kNodeCost = 16, kDeviceCost = 0.5;

// Whether every expert is served by a host, and all tokens together pay at most 2 % more than at the least.
bool is_near_exact(const LayerPlan& layer, const Cluster& cluster, DeviceId source, int top_k,
                   const std::vector<std::uint16_t>& choices, const std::vector<std::int32_t>& chosen) {
  const auto devices = static_cast<std::size_t>(cluster.num_devices());
  joint::Hosts hosts(kNumExperts * devices, 0);
  const std::vector<std::vector<DeviceId>> hosts_of = layer.hosts_of_expert(kNumExperts);
  for (std::size_t e = 0; e < hosts_of.size(); ++e)
    for (const DeviceId d : hosts_of[e]) hosts[e * devices + d.idx()] = 1;
  joint::ExactCover exact(cluster, hosts, kNodeCost, kDeviceCost);
  exact.set_prices(layer.cover.price, {});
  const auto k = static_cast<std::size_t>(top_k);
  double got = 0, least = 0;
  std::vector<std::int32_t> device_of(k);
  for (std::size_t t = 0; t < choices.size(); t += k) {
    least += exact.route(std::span(choices).subspan(t, k), source.idx(), device_of.data());
    std::vector<bool> node_used(cluster.devices_of_node.size(), false), device_used(devices, false);
    node_used[cluster.node_of(source).idx()] = true;
    for (std::size_t i = t; i < t + k; ++i) {
      const DeviceId d(chosen[i]);
      if (hosts[choices[i] * devices + d.idx()] == 0) return false;
      got += layer.cover.price[d.idx()];
      const NodeId node = cluster.node_of(d);
      const bool is_entry = cluster.local_index_of(d) == cluster.local_index_of(source);
      if (!node_used[node.idx()]) got += kNodeCost;
      if (!device_used[d.idx()] && !is_entry) got += kDeviceCost;
      node_used[node.idx()] = device_used[d.idx()] = true;
    }
  }
  return got >= least - 1e-6 && got <= 1.02 * least;
}

void cover_batch(benchmark::State& state) {
  const int top_k = static_cast<int>(state.range(0));
  Rng rng(1);
  const Cluster cluster = two_nodes_of_four();
  LayerPlan layer = layer_with_replicas(cluster, rng);
  layer.cover = {kNodeCost, kDeviceCost, {}};
  for (int d = 0; d < cluster.num_devices(); ++d) layer.cover.price.push_back(0.8 + 0.4 * rng.uniform());
  const std::vector<std::uint16_t> choices = random_choices(rng, top_k);
  const DeviceId source(5);
  const std::unique_ptr<Router> router = make_router("cover", layer, kNumExperts, cluster, source).value();
  std::vector<std::int32_t> chosen(choices.size());
  router->route(choices, top_k, chosen);
  if (!is_near_exact(layer, cluster, source, top_k, choices, chosen)) {
    state.SkipWithError("the covers are not those of the contract");
    return;
  }
  for (auto _ : state) {
    router->route(choices, top_k, chosen);
    benchmark::DoNotOptimize(chosen.data());
    benchmark::ClobberMemory();
  }
  count_tokens(state);
}

BENCHMARK_CAPTURE(route_batch, tar, "tar");
BENCHMARK_CAPTURE(route_batch, wrr, "wrr");
BENCHMARK(cover_batch)->ArgName("top_k")->Arg(6)->Arg(8);

}  // namespace
}  // namespace grace

BENCHMARK_MAIN();
