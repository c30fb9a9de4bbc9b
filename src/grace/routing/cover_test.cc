#include "grace/routing/cover.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <string>

#include "grace/base/rng.h"
#include "grace/routing/routing.h"

namespace grace {
namespace {

Cluster cluster_of(const std::vector<std::size_t>& devices_per_node) {
  Cluster cluster;
  for (const std::size_t devices : devices_per_node) cluster.devices_of_node.emplace_back(devices);
  return cluster;
}

// The nodes beyond the own and the devices that are neither the own nor an entry, in the words of the
// contract.
Cover::Visit visited(const Cluster& cluster, std::size_t source, std::span<const std::int32_t> device_of) {
  const DeviceId own(static_cast<std::int32_t>(source));
  std::set<std::int32_t> nodes, devices;
  for (const std::int32_t d : device_of) {
    const NodeId node = cluster.node_of(DeviceId(d));
    if (node != cluster.node_of(own)) nodes.insert(node.value);
    const int entry =
        cluster.first_device_of(node).value + cluster.local_index_of(own) % cluster.devices_in(node);
    if (node == cluster.node_of(own) ? d != own.value : d != entry) devices.insert(d);
  }
  return {static_cast<int>(nodes.size()), static_cast<int>(devices.size())};
}

struct Problem {
  Problem(const Cluster& c, int num_experts, const CoverCosts& given, Rng& rng)
      : cluster(c), costs(given), cover(c, num_experts, given) {
    const auto devices = static_cast<std::size_t>(c.num_devices());
    for (int e = 0; e < num_experts; ++e) {
      std::vector<std::int32_t> of_expert{static_cast<std::int32_t>(rng.below(devices))};
      while (rng.below(3) == 0) of_expert.push_back(static_cast<std::int32_t>(rng.below(devices)));
      std::ranges::sort(of_expert);
      of_expert.erase(std::unique(of_expert.begin(), of_expert.end()), of_expert.end());
      for (const std::int32_t d : of_expert) cover.set_host(ExpertId(e), DeviceId(d), true);
      hosts.push_back(of_expert);
    }
  }
  double cost(std::span<const std::uint16_t> experts, std::span<const std::int32_t> device_of,
              const Cover::Visit& visit) const {
    double sum = costs.node * visit.nodes + costs.device * visit.devices;
    for (const std::int32_t d : device_of) sum += cover.price(experts, static_cast<std::size_t>(d));
    return sum;
  }

  Cluster cluster;
  CoverCosts costs;
  Cover cover;
  std::vector<std::vector<std::int32_t>> hosts;  // [E]
};

std::vector<std::uint16_t> draw(Rng& rng, int num_experts, std::size_t count) {
  std::vector<std::uint16_t> experts(static_cast<std::size_t>(num_experts));
  std::iota(experts.begin(), experts.end(), std::uint16_t{0});
  rng.shuffle(std::span(experts));
  experts.resize(count);
  return experts;
}

CoverCosts random_costs(Rng& rng, int num_devices) {
  CoverCosts costs{16 * rng.uniform(), 4 * rng.uniform(), {}};
  if (rng.below(6) == 0) costs.node = 0;
  if (rng.below(6) == 0) costs.device = 0;
  if (rng.below(4) != 0)
    for (int d = 0; d < num_devices; ++d) costs.price.push_back(3 * rng.uniform());
  return costs;
}

class ACover : public testing::TestWithParam<std::uint64_t> {};

TEST_P(ACover, IsSoundOnAnyMachine) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  const std::vector<std::vector<std::size_t>> machines{
      {1}, {2}, {5}, {2, 2, 2}, {4, 4}, {3, 1, 2}, {1, 8}, {9}, {8, 8, 8, 8}, {8, 8, 8, 8, 8}, {17, 23}};
  for (const std::vector<std::size_t>& machine : machines) {
    const Cluster cluster = cluster_of(machine);
    const int num_experts = 64 + static_cast<int>(rng.below(40));
    const Problem problem(cluster, num_experts, random_costs(rng, cluster.num_devices()), rng);
    for (const std::size_t count : {0u, 1u, 2u, 6u, 8u, 17u, 64u}) {
      const std::vector<std::uint16_t> experts = draw(rng, num_experts, count);
      const std::size_t source = rng.below(static_cast<std::uint64_t>(cluster.num_devices()));
      std::vector<std::int32_t> device_of(count, -1);
      const Cover::Visit visit = problem.cover.route(experts, source, device_of.data());
      for (std::size_t k = 0; k < count; ++k)
        EXPECT_THAT(problem.hosts[experts[k]], testing::Contains(device_of[k]));
      const Cover::Visit counted = visited(cluster, source, device_of);
      EXPECT_EQ(visit.nodes, counted.nodes) << cluster.num_devices() << " devices, " << count << " experts";
      EXPECT_EQ(visit.devices, counted.devices)
          << cluster.num_devices() << " devices, " << count << " experts";
    }
  }
}

// Every way to serve a token, tried. Costs are rounded inside to 1/65536 of the dearest.
TEST_P(ACover, IsNeverBelowTheCheapestAndSeldomFarAboveIt) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  double got = 0, least = 0;
  for (int i = 0; i < 40; ++i) {
    std::vector<std::size_t> machine(1 + rng.below(3));
    for (std::size_t& devices : machine) devices = 1 + rng.below(3);
    const Cluster cluster = cluster_of(machine);
    const Problem problem(cluster, 12, random_costs(rng, cluster.num_devices()), rng);
    const std::vector<std::uint16_t> experts = draw(rng, 12, 1 + rng.below(5));
    const std::size_t source = rng.below(static_cast<std::uint64_t>(cluster.num_devices()));
    std::vector<std::int32_t> device_of(experts.size());
    const Cover::Visit visit = problem.cover.route(experts, source, device_of.data());
    const double cost = problem.cost(experts, device_of, visit);
    double best = std::numeric_limits<double>::infinity();
    std::vector<std::size_t> choice(experts.size(), 0);
    while (true) {
      for (std::size_t k = 0; k < experts.size(); ++k) device_of[k] = problem.hosts[experts[k]][choice[k]];
      best = std::min(best, problem.cost(experts, device_of, visited(cluster, source, device_of)));
      std::size_t k = 0;
      while (k < experts.size() && ++choice[k] == problem.hosts[experts[k]].size()) choice[k++] = 0;
      if (k == experts.size()) break;
    }
    EXPECT_GE(cost, best - 1e-9);
    got += cost;
    least += best;
  }
  EXPECT_LE(got, 1.06 * least);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ACover, testing::Range<std::uint64_t>(0, 30));

TEST(ACoverWithPrices, LeavesADeviceThatHasBecomeDear) {
  const Cluster cluster = cluster_of({2});
  Cover cover(cluster, 1, {16, 1, {1, 1}});
  cover.set_host(ExpertId(0), DeviceId(0), true);
  cover.set_host(ExpertId(0), DeviceId(1), true);
  const std::vector<std::uint16_t> experts{0};
  std::int32_t device = -1;
  EXPECT_EQ(cover.route(experts, 0, &device).devices, 0);
  EXPECT_EQ(device, 0);
  cover.set_prices(std::vector<double>{4, 1});
  EXPECT_EQ(cover.route(experts, 0, &device).devices, 1);
  EXPECT_EQ(device, 1);
  cover.set_host(ExpertId(0), DeviceId(1), false);
  cover.route(experts, 0, &device);
  EXPECT_EQ(device, 0);
  // Prices beyond all bounds are still prices.
  cover.set_host(ExpertId(0), DeviceId(1), true);
  cover.set_prices(std::vector<double>{1e30, 1});
  cover.route(experts, 0, &device);
  EXPECT_EQ(device, 1);
}

// A batch in which two experts do most of the work, each on two of four devices that have a host each.
double max_over_mean_under(std::string_view policy) {
  const Cluster cluster = cluster_of({4});
  constexpr int kExperts = 8;
  LayerPlan layer;
  layer.primaries_of_device = {{ExpertId(0), ExpertId(1)},
                               {ExpertId(2), ExpertId(3)},
                               {ExpertId(4), ExpertId(5)},
                               {ExpertId(6), ExpertId(7)}};
  layer.replicas_of_device = {{}, {ExpertId(0)}, {ExpertId(0), ExpertId(1)}, {ExpertId(1)}};
  layer.predicted_load = {1, 1, 1, 1};
  layer.cover = {6, 0.5, {0.75, 0.75, 1, 1}};  // made for other loads
  std::vector<std::unique_ptr<Router>> routers;
  for (int d = 0; d < 4; ++d)
    routers.push_back(make_router(policy, layer, kExperts, cluster, DeviceId(d)).value());
  Rng rng(9);
  std::vector<std::int64_t> load(4, 0);
  constexpr int kTokens = 2048;
  for (int t = 0; t < kTokens; ++t) {
    if (t % 128 == 0)
      for (const auto& router : routers) router->observe(load, 2 * kTokens);
    std::vector<std::uint16_t> choices{static_cast<std::uint16_t>(rng.below(2)),
                                       static_cast<std::uint16_t>(2 + rng.below(6))};
    std::vector<std::int32_t> device_of(2);
    routers[0]->route(choices, 2, device_of);
    for (const std::int32_t d : device_of) ++load[static_cast<std::size_t>(d)];
  }
  return static_cast<double>(std::ranges::max(load)) * 4 / (2 * kTokens);
}

TEST(AFeedbackOfLoads, EvensOutASkewedBatch) {
  const double without = max_over_mean_under("cover");
  const double with = max_over_mean_under("cover_feedback");
  EXPECT_GT(without, 1.5);
  EXPECT_LT(with, 1.15);
}

// Devices that are alike in all a token pays would all be left for the lowest of them.
TEST(Cover, SharesAmongDevicesWhatIsEqual) {
  const Cluster cluster = cluster_of({1, 4});
  constexpr int kExperts = 32;
  Cover cover(cluster, kExperts, {16, 0, std::vector<double>(5, 1.0)});
  for (int e = 0; e < kExperts; ++e)
    for (int d = 1; d < 5; ++d) cover.set_host(ExpertId(e), DeviceId(d), true);
  cover.set_prices(std::vector<double>{1, 1, 1, 1, 1.3});  // too far apart to be made up for
  Rng rng(4);
  std::vector<int> load(5, 0);
  for (int t = 0; t < 4000; ++t) {
    const auto experts = draw(rng, kExperts, 4);
    std::vector<std::int32_t> device_of(4);
    cover.route(experts, 0, device_of.data());
    for (const std::int32_t d : device_of) ++load[static_cast<std::size_t>(d)];
  }
  for (std::size_t d = 1; d < 4; ++d) EXPECT_NEAR(load[d], 16000 / 3, 600);
  EXPECT_EQ(load[4], 0);
}

TEST(Cover, PaysTheSameSurchargeForASetInAnyOrder) {
  const Cluster cluster = cluster_of({3, 3});
  Rng rng(5);
  const Problem problem(cluster, 24, {16, 1, {1, 1, 1, 1, 1, 1}}, rng);
  for (int t = 0; t < 200; ++t) {
    auto experts = draw(rng, 24, 6);
    std::vector<double> price(6);
    for (std::size_t d = 0; d < 6; ++d) {
      price[d] = problem.cover.price(experts, d);
      EXPECT_GE(price[d], 1 - 1e-3);
      EXPECT_LE(price[d], 1 + kSurcharge);
    }
    rng.shuffle(std::span(experts));
    for (std::size_t d = 0; d < 6; ++d) EXPECT_EQ(problem.cover.price(experts, d), price[d]);
  }
}

// The way through registers, for at most eight devices and experts, against the general one.
TEST(Cover, RoutesFewDevicesAndExpertsAsItRoutesMany) {
  const std::vector<std::vector<std::size_t>> shapes{{8}, {4, 4}, {2, 2, 2}, {1, 3}, {1, 1, 1, 1, 1, 1, 1},
                                                     {1}};
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const Cluster cluster = cluster_of(shapes[rng.below(shapes.size())]);
    const int num_experts = 8 + static_cast<int>(rng.below(24));
    Problem problem(cluster, num_experts, random_costs(rng, cluster.num_devices()), rng);
    for (int t = 0; t < 40; ++t) {
      const auto experts = draw(rng, num_experts, 1 + rng.below(8));
      const std::size_t source = rng.below(static_cast<std::uint64_t>(cluster.num_devices()));
      std::vector<std::int32_t> fast(experts.size()), general(experts.size());
      problem.cover.set_always_general(false);
      const Cover::Visit by_fast = problem.cover.route(experts, source, fast.data());
      problem.cover.set_always_general(true);
      const Cover::Visit by_general = problem.cover.route(experts, source, general.data());
      EXPECT_EQ(fast, general);
      EXPECT_EQ(by_fast.nodes, by_general.nodes);
      EXPECT_EQ(by_fast.devices, by_general.devices);
    }
  }
}

}  // namespace
}  // namespace grace
