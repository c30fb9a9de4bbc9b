#include "grace/routing/routing.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "grace/base/rng.h"

namespace grace {
namespace {

Cluster cluster_of(std::initializer_list<std::size_t> devices_per_node) {
  Cluster cluster;
  for (const std::size_t devices : devices_per_node) cluster.devices_of_node.emplace_back(devices);
  return cluster;
}
DeviceId dev(std::size_t d) { return DeviceId(static_cast<std::int32_t>(d)); }

// Every expert on a random primary, plus random replicas.
LayerPlan random_layer(Rng& rng, int num_experts, int num_devices) {
  const auto devices = static_cast<std::size_t>(num_devices);
  LayerPlan layer{
      std::vector<std::vector<ExpertId>>(devices), std::vector<std::vector<ExpertId>>(devices), {}};
  for (int e = 0; e < num_experts; ++e) {
    const std::size_t primary = rng.below(devices);
    layer.primaries_of_device[primary].push_back(ExpertId(e));
    for (std::size_t d = 0; d < devices; ++d)
      if (d != primary && rng.below(3) == 0) layer.replicas_of_device[d].push_back(ExpertId(e));
  }
  for (std::size_t d = 0; d < devices; ++d)
    layer.predicted_load.push_back(static_cast<double>(rng.below(1000)));
  return layer;
}

// The slow twin: candidates are found anew for each token, turns kept in a map by (expert), in the words of
// the contract.
class SlowRouter {
 public:
  SlowRouter(std::string policy, const LayerPlan& layer, int num_experts, const Cluster& cluster,
             DeviceId source)
      : policy_(std::move(policy)),
        layer_(layer),
        hosts_(layer.hosts_of_expert(num_experts)),
        cluster_(cluster),
        source_(source) {}

  std::int32_t device_for(std::uint16_t expert) {
    if (expert == kNotChosen) return -1;
    const std::vector<DeviceId>& hosts = hosts_[expert];
    if (policy_ == "primary") return hosts.front().value;
    std::set<DeviceId> candidates(hosts.begin(), hosts.end());
    if (policy_ == "tar") {
      if (candidates.contains(source_)) return source_.value;
      std::set<DeviceId> near;
      for (const DeviceId d : candidates)
        if (cluster_.node_of(d) == cluster_.node_of(source_)) near.insert(d);
      if (!near.empty()) candidates = near;
    }
    std::int64_t sum = 0;
    DeviceId best = kNoDevice;
    for (const DeviceId d : candidates) {
      credit_[{expert, d}] += weight(d);
      sum += weight(d);
      if (best == kNoDevice || credit_[{expert, d}] > credit_[{expert, best}]) best = d;
    }
    credit_[{expert, best}] -= sum;
    return best.value;
  }

 private:
  std::int64_t weight(DeviceId d) const {
    const std::vector<double>& load = layer_.predicted_load;
    const double largest = load.empty() ? 0 : *std::ranges::max_element(load);
    if (largest <= 0) return 1;
    const auto floored = [&](double l) { return std::max(l, largest * 1e-6); };
    const double least = floored(*std::ranges::min_element(load));
    return std::max<std::int64_t>(1, std::llround(4294967296.0 * (least / floored(load[d.idx()]))));
  }

  std::string policy_;
  const LayerPlan& layer_;
  std::vector<std::vector<DeviceId>> hosts_;
  const Cluster& cluster_;
  DeviceId source_;
  std::map<std::pair<std::uint16_t, DeviceId>, std::int64_t> credit_;
};

class ARouter : public testing::TestWithParam<std::uint64_t> {};

TEST_P(ARouter, AgreesWithItsSlowTwin) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  const std::vector<Cluster> clusters{cluster_of({1}), cluster_of({2, 2}), cluster_of({4, 4}),
                                      cluster_of({1, 3, 2}), cluster_of({7})};
  const Cluster& cluster = clusters[rng.below(clusters.size())];
  const int num_experts = 1 + static_cast<int>(rng.below(70));
  const int top_k = 1 + static_cast<int>(rng.below(static_cast<std::uint64_t>(std::min(num_experts, 8))));
  LayerPlan layer = random_layer(rng, num_experts, cluster.num_devices());
  if (rng.below(4) == 0) layer.predicted_load.clear();
  if (rng.below(4) == 0) std::ranges::fill(layer.predicted_load, 0.0);
  const DeviceId source = dev(rng.below(static_cast<std::uint64_t>(cluster.num_devices())));
  for (const char* policy : {"tar", "wrr", "primary"}) {
    SCOPED_TRACE(policy);
    auto router = make_router(policy, layer, num_experts, cluster, source);
    ASSERT_TRUE(router.ok()) << router.error().message;
    SlowRouter twin(policy, layer, num_experts, cluster, source);
    for (int batch = 0; batch < 4; ++batch) {
      std::vector<std::uint16_t> choices(rng.below(97) * static_cast<std::size_t>(top_k));
      for (std::uint16_t& c : choices)
        c = rng.below(20) == 0
                ? kNotChosen
                : static_cast<std::uint16_t>(rng.below(static_cast<std::uint64_t>(num_experts)));
      std::vector<std::int32_t> got(choices.size(), -7);
      router.value()->route(choices, top_k, got);
      std::vector<std::int32_t> want;
      for (const std::uint16_t c : choices) want.push_back(twin.device_for(c));
      ASSERT_EQ(got, want);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, ARouter, testing::Range<std::uint64_t>(0, 200));

// Expert 0 on device 0, with replicas where `replicas` says; the turns that `source` takes for it.
std::vector<std::int32_t> turns(const char* policy, const Cluster& cluster, std::vector<int> replicas,
                                std::vector<double> load, int source, std::size_t count) {
  const auto devices = static_cast<std::size_t>(cluster.num_devices());
  LayerPlan layer{std::vector<std::vector<ExpertId>>(devices), std::vector<std::vector<ExpertId>>(devices),
                  std::move(load)};
  layer.primaries_of_device[0].push_back(ExpertId(0));
  for (const int d : replicas) layer.replicas_of_device[static_cast<std::size_t>(d)].push_back(ExpertId(0));
  auto router = make_router(policy, layer, 1, cluster, DeviceId(source));
  const std::vector<std::uint16_t> choices(count, 0);
  std::vector<std::int32_t> devices_chosen(count);
  router.value()->route(choices, 1, devices_chosen);
  return devices_chosen;
}

TEST(WeightedTurns, GoSmoothlyByTheInverseOfThePredictedLoad) {
  // Weights 4 : 2 : 1, so seven turns make a round (nginx's order).
  EXPECT_THAT(turns("wrr", cluster_of({3}), {1, 2}, {100, 200, 400}, 0, 7),
              testing::ElementsAre(0, 1, 0, 2, 0, 1, 0));
}

TEST(WeightedTurns, StartWithTheLowerDeviceOnATie) {
  EXPECT_THAT(turns("wrr", cluster_of({3}), {1, 2}, {5, 5, 5}, 2, 6), testing::ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(turns("wrr", cluster_of({3}), {1, 2}, {}, 2, 4), testing::ElementsAre(0, 1, 2, 0));
  EXPECT_THAT(turns("wrr", cluster_of({3}), {1, 2}, {0, 0, 0}, 2, 4), testing::ElementsAre(0, 1, 2, 0));
}

TEST(WeightedTurns, KeepTheirSharesOverAMillionTokens) {
  const auto chosen = turns("wrr", cluster_of({3}), {1, 2}, {300, 700, 1100}, 0, 1'000'000);
  std::array<double, 3> share{};
  for (const std::int32_t d : chosen) share[static_cast<std::size_t>(d)] += 1e-6;
  const double sum = 1.0 / 300 + 1.0 / 700 + 1.0 / 1100;
  EXPECT_NEAR(share[0], 1.0 / 300 / sum, 3e-6);
  EXPECT_NEAR(share[1], 1.0 / 700 / sum, 3e-6);
  EXPECT_NEAR(share[2], 1.0 / 1100 / sum, 3e-6);
}

TEST(WeightedTurns, GiveNearlyAllToADeviceWithoutLoad) {
  const auto chosen = turns("wrr", cluster_of({2}), {1}, {0, 50}, 1, 1000);
  EXPECT_GE(std::ranges::count(chosen, 0), 999);
}

TEST(TopologyAwareRouting, TakesTheNearestLevelThatHasACopy) {
  const Cluster cluster = cluster_of({2, 2});
  EXPECT_THAT(turns("tar", cluster, {1, 2, 3}, {}, 2, 3), testing::Each(2));  // own device
  EXPECT_THAT(turns("tar", cluster, {2}, {}, 3, 3), testing::Each(2));        // own node
  EXPECT_THAT(turns("tar", cluster, {1}, {}, 2, 4),
              testing::ElementsAre(0, 1, 0, 1));  // turns on the other node
  EXPECT_THAT(turns("tar", cluster_of({2, 3}), {2, 3}, {}, 4, 4),
              testing::ElementsAre(2, 3, 2, 3));  // turns on its node
}

TEST(PrimaryRouting, IgnoresReplicas) {
  EXPECT_THAT(turns("primary", cluster_of({2, 2}), {1, 2, 3}, {9, 1, 1, 1}, 3, 5), testing::Each(0));
}

TEST(ARouter, RemembersItsTurnsFromCallToCall) {
  const Cluster cluster = cluster_of({3});
  Rng rng(11);
  const LayerPlan layer = random_layer(rng, 16, 3);
  std::vector<std::uint16_t> choices(600);
  for (std::uint16_t& c : choices) c = static_cast<std::uint16_t>(rng.below(16));
  std::vector<std::int32_t> at_once(choices.size());
  std::vector<std::int32_t> in_parts(choices.size());
  make_router("wrr", layer, 16, cluster, DeviceId(0)).value()->route(choices, 2, at_once);
  const std::unique_ptr<Router> router = make_router("wrr", layer, 16, cluster, DeviceId(0)).value();
  for (std::size_t at = 0; at < choices.size(); at += 60)
    router->route(std::span(choices).subspan(at, 60), 2, std::span(in_parts).subspan(at, 60));
  EXPECT_EQ(at_once, in_parts);
}

TEST(ARouter, NamesThePoliciesWhenAskedForAnother) {
  Rng rng(1);
  const Cluster cluster = cluster_of({2});
  const auto made = make_router("nearest", random_layer(rng, 4, 2), 4, cluster, DeviceId(0));
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().kind, ErrorKind::kInvalidInput);
  EXPECT_THAT(made.error().message, testing::StartsWith("routing policy `nearest` is none of tar, wrr, "));
}

}  // namespace
}  // namespace grace
