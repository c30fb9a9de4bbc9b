#include "grace/planner/joint/bounds.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "grace/planner/joint/exact_cover.h"
#include "grace/planner/joint/joint_test_util.h"
#include "grace/planner/joint/search.h"
#include "grace/routing/cover.h"
#include "grace/routing/routing.h"

namespace grace::joint {
namespace {

Objective objective_of(Aim aim) {
  Objective objective;
  objective.aim = aim;
  return objective;
}

// All ways to serve the experts, one after the other.
double cheapest_of_all(const Cluster& cluster, const Hosts& hosts, std::span<const std::uint16_t> experts,
                       std::size_t source, const std::array<double, 2>& costs,
                       std::span<const double> prices) {
  const auto devices = static_cast<std::size_t>(cluster.num_devices());
  std::vector<std::int32_t> device_of(experts.size(), 0);
  double best = std::numeric_limits<double>::infinity();
  while (true) {
    bool held = true;
    double cost = 0;
    for (std::size_t k = 0; k < experts.size(); ++k) {
      const auto d = static_cast<std::size_t>(device_of[k]);
      held = held && hosts[experts[k] * devices + d] != 0;
      cost += prices[d];
    }
    if (held) {
      Routed routed;
      add_routed(cluster, source, device_of, routed);
      cost += costs[0] * static_cast<double>(routed.x) + costs[1] * static_cast<double>(routed.y);
      best = std::min(best, cost);
    }
    std::size_t k = 0;
    while (k < experts.size() && ++device_of[k] == static_cast<std::int32_t>(devices)) device_of[k++] = 0;
    if (k == experts.size()) return best;
  }
}

class ABound : public testing::TestWithParam<std::uint64_t> {};

TEST_P(ABound, OfOneTokenIsTheCheapestOfAllWaysToServeIt) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  const Cluster cluster = random_cluster(rng);
  const int devices = cluster.num_devices();
  const int num_experts = 4 + static_cast<int>(rng.below(6));
  const Hosts hosts = random_hosts(rng, num_experts, random_slots(rng, num_experts, devices, 4));
  const std::array<double, 2> costs{16 * rng.uniform(), 4 * rng.uniform()};
  std::vector<double> prices(static_cast<std::size_t>(devices));
  for (double& price : prices) price = 3 * rng.uniform();
  ExactCover cover(cluster, hosts, costs[0], costs[1]);
  cover.set_prices(prices, {});
  for (int draw = 0; draw < 8; ++draw) {
    std::vector<std::uint16_t> experts(static_cast<std::size_t>(num_experts));
    std::iota(experts.begin(), experts.end(), std::uint16_t{0});
    rng.shuffle(std::span(experts));
    experts.resize(1 + rng.below(4));
    const std::size_t source = rng.below(static_cast<std::uint64_t>(devices));
    std::vector<std::int32_t> device_of(experts.size(), -1);
    const double cost = cover.route(experts, source, device_of.data());
    EXPECT_NEAR(cost, cheapest_of_all(cluster, hosts, experts, source, costs, prices), 1e-9);
    // What it says it does costs what it says.
    Routed routed;
    add_routed(cluster, source, device_of, routed);
    double told = costs[0] * static_cast<double>(routed.x) + costs[1] * static_cast<double>(routed.y);
    for (std::size_t k = 0; k < experts.size(); ++k) {
      const auto d = static_cast<std::size_t>(device_of[k]);
      EXPECT_EQ(hosts[experts[k] * prices.size() + d], 1);
      told += prices[d];
    }
    EXPECT_NEAR(cost, told, 1e-9);
  }
}

TEST_P(ABound, OfTheFullestDeviceIsTheLargestRatioOfASetOfExpertsAndItsHosts) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  const std::size_t experts = 1 + rng.below(9), devices = 1 + rng.below(6);
  const std::vector<int> slots = random_slots(rng, static_cast<int>(experts), static_cast<int>(devices), 2);
  const Hosts hosts = random_hosts(rng, static_cast<int>(experts), slots);
  std::vector<std::int64_t> load(experts);
  for (std::int64_t& l : load) l = rng.below(4) == 0 ? 0 : static_cast<std::int64_t>(rng.below(100));
  double most = 0;
  for (std::size_t set = 1; set < std::size_t{1} << experts; ++set) {
    std::int64_t sum = 0;
    std::vector<bool> held(devices, false);
    for (std::size_t e = 0; e < experts; ++e) {
      if ((set >> e & 1) == 0) continue;
      sum += load[e];
      for (std::size_t d = 0; d < devices; ++d) held[d] = held[d] || hosts[e * devices + d] != 0;
    }
    most = std::max(most, static_cast<double>(sum) / static_cast<double>(std::ranges::count(held, true)));
  }
  EXPECT_DOUBLE_EQ(exact_min_max_load(load, hosts, devices), most);
}

TEST_P(ABound, IsBelowEveryPlanUnderEveryPolicy) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  const Cluster cluster = random_cluster(rng);
  const int num_devices = cluster.num_devices();
  const auto devices = static_cast<std::size_t>(num_devices);
  const int num_experts = 2 + static_cast<int>(rng.below(14));
  const Trace trace =
      random_trace(rng, 1 + static_cast<int>(rng.below(80)), num_experts, 1 + static_cast<int>(rng.below(4)));
  const SearchTokens tokens = all_tokens(trace, num_devices, GetParam());
  const std::vector<int> slots = random_slots(rng, num_experts, num_devices, 3);
  for (const Aim aim : {Aim::kJudgeSlow, Aim::kJudgeFast}) {
    const Weights weights = weights_of(objective_of(aim), cluster, tokens);
    const PlacementBound placement = placement_bound(cluster, tokens, weights, slots);
    for (int draw = 0; draw < 4; ++draw) {
      const Hosts hosts = random_hosts(rng, num_experts, slots);
      std::vector<double> prices(devices);
      for (double& price : prices) price = rng.uniform();
      const RoutingBound routing = routing_bound(cluster, tokens, weights, hosts, prices);
      const double fullest = exact_min_max_load(tokens.load, hosts, devices);
      const LayerPlan layer = layer_of(hosts, devices, {weights.node, weights.device, prices});
      for (const std::string policy : {"tar", "wrr", "wrr_random", "primary", "cover", "cover_feedback"}) {
        Routed routed;
        for (std::size_t s = 0; s < devices; ++s) {
          const auto router =
              make_router(policy, layer, num_experts, cluster, DeviceId(static_cast<std::int32_t>(s)));
          for (std::size_t t = 0; t < tokens.size(); ++t) {
            if (tokens.source[t] != s) continue;
            std::vector<std::int32_t> device_of(tokens.of(t).size());
            router.value()->route(tokens.of(t), static_cast<int>(device_of.size()), device_of);
            add_routed(cluster, s, device_of, routed);
          }
        }
        const double value = routed.value(weights, tokens.size());
        EXPECT_LE(routing.value, value + 1e-9) << policy;
        EXPECT_LE(placement.value, value + 1e-9) << policy;
        EXPECT_LE(placement.nodes * static_cast<double>(tokens.size()), static_cast<double>(routed.x) + 1e-6);
        EXPECT_LE(placement.vectors * static_cast<double>(tokens.size()),
                  static_cast<double>(routed.x + routed.y) + 1e-6);
        EXPECT_LE(fullest, static_cast<double>(*std::ranges::max_element(routed.load)) + 1e-9);
      }
    }
  }
}

TEST_P(ABound, OfLayerTimeIsBelowEveryState) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  Cluster cluster = random_cluster(rng);
  for (std::vector<Device>& node : cluster.devices_of_node)
    for (Device& device : node) device.speed = 0.5 + rng.uniform();
  const int num_devices = cluster.num_devices();
  const int num_experts = 2 + static_cast<int>(rng.below(14));
  const Trace trace = random_trace(rng, 1 + static_cast<int>(rng.below(200)), num_experts, 3);
  const SearchTokens tokens = all_tokens(trace, num_devices, GetParam());
  const std::vector<int> slots = random_slots(rng, num_experts, num_devices, 3);
  for (const std::int64_t batch : {4, 64, 2048}) {
    const Weights weights = weights_of(
        {.aim = Aim::kLayerTime, .sizes = {.hidden = 64, .expert_ffn = 96}, .batch = batch}, cluster, tokens);
    const PlacementBound placement = placement_bound(cluster, tokens, weights, slots);
    for (int draw = 0; draw < 4; ++draw) {
      const Hosts hosts = random_hosts(rng, num_experts, slots);
      RoutedState state(cluster, tokens, weights, hosts);
      state.fit_prices(8);
      EXPECT_LE(routing_bound(cluster, tokens, weights, hosts, state.prices()).value,
                state.objective() + 1e-9);
      EXPECT_LE(placement.value, state.objective() + 1e-9);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ABound, testing::Range<std::uint64_t>(0, 60));

TEST(ABoundOfATokenOfManyExperts, IsBelowItsCoverAndServesEveryExpert) {
  Rng rng(1);
  const Cluster cluster = cluster_of({4, 4});
  const Hosts hosts = random_hosts(rng, 64, std::vector<int>(8, 12));
  const std::vector<double> prices(8, 0.5);
  ExactCover exact(cluster, hosts, 16, 1);
  exact.set_prices(prices, {});
  Cover cover(cluster, 64, {16, 1, prices});
  for (int e = 0; e < 64; ++e)
    for (int d = 0; d < 8; ++d)
      cover.set_host(ExpertId(e), DeviceId(d), hosts[static_cast<std::size_t>(e * 8 + d)] != 0);
  for (const std::size_t count : {12u, 13u, 20u, 64u}) {
    std::vector<std::uint16_t> experts(64);
    std::iota(experts.begin(), experts.end(), std::uint16_t{0});
    rng.shuffle(std::span(experts));
    experts.resize(count);
    std::vector<std::int32_t> device_of(count, -1);
    const double least = exact.route(experts, 3, device_of.data());
    for (std::size_t k = 0; k < count; ++k)
      EXPECT_EQ(hosts[experts[k] * 8u + static_cast<std::size_t>(device_of[k])], 1);
    const Cover::Visit visit = cover.route(experts, 3, device_of.data());
    EXPECT_LE(least, 16.0 * visit.nodes + visit.devices + 0.5 * static_cast<double>(count) + 1e-9);
    EXPECT_GT(least, 0.5 * static_cast<double>(count));
  }
}

TEST(ABoundOfNothing, IsNotANumberNowhere) {
  const Cluster cluster = cluster_of({2, 1});
  SearchTokens tokens;
  tokens.num_experts = 3;
  tokens.load.assign(3, 0);
  const Weights weights = weights_of(objective_of(Aim::kJudgeSlow), cluster, tokens);
  const Hosts hosts(9, 1);
  EXPECT_EQ(exact_min_max_load(tokens.load, hosts, 3), 0);
  EXPECT_EQ(routing_bound(cluster, tokens, weights, hosts, {}).value, 0);
  EXPECT_EQ(placement_bound(cluster, tokens, weights, std::vector<int>{1, 1, 1}).value, weights.load);
}

TEST(ACoverOnRealRouting, IsWithinOnePercentOfTheCheapestOnAverage) {
  const Trace trace = deepseek_trace();
  if (trace.num_tokens() == 0) GTEST_SKIP() << "the real routing data is not on this machine";
  Rng rng(4);
  for (const std::vector<std::size_t>& machine :
       {std::vector<std::size_t>{4, 4}, {8}, {2, 2, 2}, {8, 8, 8, 8}}) {
    const Cluster cluster = cluster_of(machine);
    const auto devices = static_cast<std::size_t>(cluster.num_devices());
    for (const std::size_t copies : {0u, 8u, 32u}) {
      const SearchTokens tokens = sample_tokens(trace, MoeOrdinal(12), cluster.num_devices(), 1000, Rng(1));
      const std::vector<int> slots(devices, static_cast<int>((64 + copies + devices - 1) / devices));
      const Hosts hosts = random_hosts(rng, 64, slots);
      std::vector<double> prices(devices);
      for (double& price : prices) price = 0.8 + 0.4 * rng.uniform();
      ExactCover exact(cluster, hosts, 16, 0.5);
      exact.set_prices(prices, {});
      Cover cover(cluster, 64, {16, 0.5, prices});
      for (std::size_t e = 0; e < 64; ++e)
        for (std::size_t d = 0; d < devices; ++d)
          cover.set_host(ExpertId(static_cast<std::int32_t>(e)), DeviceId(static_cast<std::int32_t>(d)),
                         hosts[e * devices + d] != 0);
      double least = 0, got = 0;
      std::vector<std::int32_t> device_of(6);
      for (std::size_t t = 0; t < tokens.size(); ++t) {
        const double best = exact.route(tokens.of(t), tokens.source[t], device_of.data());
        const Cover::Visit visit = cover.route(tokens.of(t), tokens.source[t], device_of.data());
        double cost = 16.0 * visit.nodes + 0.5 * visit.devices;
        for (const std::int32_t d : device_of) cost += prices[static_cast<std::size_t>(d)];
        EXPECT_GE(cost, best - 1e-9);
        least += best;
        got += cost;
      }
      EXPECT_LE(got, 1.01 * least) << devices << " devices, " << copies << " copies";
    }
  }
}

// The plan's own prices on a draw of tokens of its trace, as certificates are printed.
TEST(ABoundOnRealRouting, IsWithinThreePercentOfWhatIsRouted) {
  const Trace trace = deepseek_trace();
  if (trace.num_tokens() == 0) GTEST_SKIP() << "the real routing data is not on this machine";
  const Cluster cluster = cluster_of({4, 4});
  ThreadPool pool(2);
  const std::vector<LayerStats> stats = count_layers(trace, pool);
  double sum = 0;
  int cases = 0;
  for (const std::size_t m : {0u, 25u})
    for (const int per_device : {8, 9, 12})
      for (const Aim aim : {Aim::kJudgeSlow, Aim::kJudgeFast}) {
        SCOPED_TRACE("layer " + std::to_string(m) + ", slots " + std::to_string(per_device));
        const MoeOrdinal layer(static_cast<std::int32_t>(m));
        const std::vector<int> slots(8, per_device);
        const Objective objective = objective_of(aim);
        const LayerSolution solution =
            search_layer({cluster, stats[m], trace, trace, layer, slots, objective, 0.2, Rng(m)}).front();
        const SearchTokens tokens = sample_tokens(trace, layer, 8, 2048, Rng(77));
        const Weights weights = weights_of(objective, cluster, tokens);
        const Hosts hosts = hosts_of(solution.plan, 64);
        RoutedState state(cluster, tokens, weights, hosts);
        state.set_prices(solution.plan.cover.price);
        const double routing =
            routing_bound(cluster, tokens, weights, hosts, solution.plan.cover.price).value;
        EXPECT_LE(routing, state.objective() + 1e-9);
        EXPECT_LE(state.objective() / routing, 1.06);
        EXPECT_LE(placement_bound(cluster, tokens, weights, slots).value, routing + 1e-9);
        sum += state.objective() / routing - 1;
        ++cases;
      }
  EXPECT_LE(sum / cases, 0.03);
  RecordProperty("mean_gap_percent", std::to_string(100 * sum / cases));
}

}  // namespace
}  // namespace grace::joint
