// `joint`: placement, copies and routing by one objective (docs/joint.md).
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "grace/base/check.h"
#include "grace/planner/joint/anneal.h"
#include "grace/planner/joint/starts.h"
#include "grace/planner/strategy.h"

namespace grace {
namespace {

using joint::Hosts;
using joint::RoutedState;
using joint::SearchTokens;
using joint::Weights;

double env(const char* n, double d) {
  const char* v = std::getenv(n);
  return v ? std::atof(v) : d;
}

struct Candidate {
  const char* start;
  Hosts hosts;
  std::vector<double> prices;
  double searched = 0;
  double chosen = 0;
};

LayerPlan plan_of(const RoutedState& state, const Weights& weights, std::size_t num_experts) {
  const std::size_t devices = state.num_devices();
  LayerPlan layer;
  layer.primaries_of_device.resize(devices);
  layer.replicas_of_device.resize(devices);
  for (std::size_t e = 0; e < num_experts; ++e) {
    bool first = true;
    for (std::size_t d = 0; d < devices; ++d) {
      if (!state.is_host(e, d)) continue;
      (first ? layer.primaries_of_device : layer.replicas_of_device)[d].push_back(
          ExpertId(static_cast<int>(e)));
      first = false;
    }
  }
  layer.predicted_load = state.loads();
  layer.cover = {weights.node, weights.device, {state.prices().begin(), state.prices().end()}};
  return layer;
}

LayerPlan search_layer(const StrategyInput& input, std::size_t m) {
  const MoeOrdinal layer(static_cast<int>(m));
  const int devices = input.cluster.num_devices();
  const Rng rng = Rng(input.options.seed).fork(m);
  const auto max_tokens = static_cast<std::size_t>(env("TOK", 6000));
  const SearchTokens tokens = joint::sample_tokens(input.plan, layer, devices, max_tokens, rng.fork(1));
  const SearchTokens choose = joint::sample_tokens(input.choose, layer, devices, max_tokens, rng.fork(2));
  const Weights weights = joint::weights_of(input.options.objective, input.cluster, tokens);
  const Weights choose_weights = joint::weights_of(input.options.objective, input.cluster, choose);
  const std::vector<int>& slots = input.slots[m];
  const auto proposals = static_cast<std::size_t>(env("PROP", 4000) * input.options.effort);
  const joint::StartInput start{
      input.cluster, input.stats[m], tokens,
      weights,       slots,          static_cast<std::size_t>(env("BITS", 60000) * input.options.effort),
      rng.fork(3)};
  const bool room = [&] {
    int sum = 0;
    for (int s : slots) sum += s;
    return sum > tokens.num_experts;
  }();
  std::vector<Candidate> candidates;
  const Hosts single = joint::single_copies(start);
  candidates.push_back({"single", single, {}});
  if (room && input.cluster.num_nodes() > 1) candidates.push_back({"mirror", joint::mirrored(start), {}});
  RoutedState state(input.cluster, tokens, weights, single);
  RoutedState judge(input.cluster, choose, choose_weights, single);
  const std::vector<double> even(state.prices().begin(), state.prices().end());
  std::size_t best = 0;
  for (std::size_t c = 0; c < candidates.size(); ++c) {
    Candidate& candidate = candidates[c];
    state.set_hosts(candidate.hosts, even);
    state.fit_prices(20);
    const double v0 = state.objective();
    if (room) joint::add_copies(state, slots);
    state.fit_prices(20);
    const double v1 = state.objective();
    joint::anneal(state, slots, proposals, rng.fork(10 + c));
    state.fit_prices(40);
    candidate.hosts = state.hosts();
    candidate.prices.assign(state.prices().begin(), state.prices().end());
    candidate.searched = state.objective();
    judge.set_hosts(candidate.hosts, candidate.prices);
    candidate.chosen = judge.objective();
    if (std::getenv("DBG"))
      fmt::print(stderr, "layer {} {}: {:.3f} -> {:.3f} -> {:.3f} (mm {:.3f}), choose {:.3f} mm {:.3f}\n", m,
                 candidate.start, v0, v1, candidate.searched, state.max_over_mean(), candidate.chosen,
                 judge.max_over_mean());
    if (candidate.chosen < candidates[best].chosen) best = c;
  }
  state.set_hosts(candidates[best].hosts, candidates[best].prices);
  return plan_of(state, weights, static_cast<std::size_t>(tokens.num_experts));
}

}  // namespace

StrategyOutput joint_layers(const StrategyInput& input) {
  StrategyOutput output;
  output.routing = "cover";
  output.layers.resize(input.stats.size());
  input.pool.for_each(input.stats.size(),
                      [&](std::size_t m, int) { output.layers[m] = search_layer(input, m); });
  return output;
}

}  // namespace grace
