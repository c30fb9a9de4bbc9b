#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "grace/base/rng.h"
#include "grace/replication/replication.h"

namespace grace {
namespace {

Cluster one_node(const std::vector<int>& slots) {
  Cluster cluster;
  cluster.devices_of_node.emplace_back();
  for (const int s : slots) cluster.devices_of_node.back().push_back({.slots = s});
  return cluster;
}

LayerStats loads(std::vector<std::int64_t> load) {
  LayerStats stats;
  stats.num_experts = static_cast<int>(load.size());
  stats.affinity.assign(load.size() * load.size(), 0);
  stats.load = std::move(load);
  return stats;
}

LayerPlan groups(const std::vector<std::vector<int>>& experts_of_device) {
  LayerPlan layer;
  for (const std::vector<int>& experts : experts_of_device) {
    layer.primaries_of_device.emplace_back();
    for (const int e : experts) layer.primaries_of_device.back().push_back(ExpertId(e));
  }
  return layer;
}

double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// The rule in floating point and by the formulas of the paper, for clusters whose slots do not bind.
std::vector<double> predicted_slowly(const LayerStats& stats, const LayerPlan& layer, std::set<int>& hot,
                                     std::vector<int>& hosts) {
  const int num_devices = static_cast<int>(layer.primaries_of_device.size());
  std::vector<double> load;
  for (const auto& group : layer.primaries_of_device) {
    load.push_back(0);
    for (const ExpertId e : group) load.back() += static_cast<double>(stats.load[e.idx()]);
  }
  const int heavy = static_cast<int>(std::ranges::max_element(load) - load.begin());
  const double w_max = load[static_cast<std::size_t>(heavy)];
  const double rho = w_max / (sum(load) / num_devices);
  const int n = std::min(std::max(1, static_cast<int>(std::floor(rho + 1e-9))), num_devices - 1);
  std::vector<std::pair<double, int>> ranked;
  for (const ExpertId e : layer.primaries_of_device[static_cast<std::size_t>(heavy)])
    ranked.emplace_back(-static_cast<double>(stats.load[e.idx()]), e.value);
  std::ranges::sort(ranked);
  double hot_load = 0;
  for (const auto& [minus_load, e] : ranked) {
    if (hot_load > w_max * n / (1 + n) + 1e-9) break;
    hot_load -= minus_load;
    hot.insert(e);
  }
  for (int d = 0; d < num_devices; ++d)
    if (d != heavy) hosts.push_back(d);
  std::ranges::sort(hosts, {}, [&](int d) { return std::pair(load[static_cast<std::size_t>(d)], d); });
  hosts.resize(static_cast<std::size_t>(n));
  const double w_p = hot_load / (n + 1);
  load[static_cast<std::size_t>(heavy)] += w_p - hot_load;
  for (const int d : hosts) load[static_cast<std::size_t>(d)] += w_p;
  return load;
}

class ADynamicReplication : public testing::TestWithParam<std::uint64_t> {
 protected:
  void SetUp() override {
    Rng rng(GetParam());
    const int num_experts = 1 + static_cast<int>(rng.below(40));
    const int num_devices = 2 + static_cast<int>(rng.below(7));
    std::vector<std::int64_t> load;
    for (int e = 0; e < num_experts; ++e)
      load.push_back(static_cast<std::int64_t>(rng.below(rng.below(6) == 0 ? 100000 : 1000)));
    stats_ = loads(std::move(load));
    stats_.load[0] += 1;
    std::vector<std::vector<int>> experts(static_cast<std::size_t>(num_devices));
    for (int e = 0; e < num_experts; ++e) experts[rng.below(experts.size())].push_back(e);
    layer_ = groups(experts);
    for (const auto& group : experts) slots_.push_back(static_cast<int>(group.size() + rng.below(3)));
  }
  std::int64_t total() const {
    return std::accumulate(stats_.load.begin(), stats_.load.end(), std::int64_t{0});
  }

  LayerStats stats_;
  LayerPlan layer_;
  std::vector<int> slots_;
};

TEST_P(ADynamicReplication, EqualsItsSlowTwinWhereSlotsDoNotBind) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  std::set<int> hot;
  std::vector<int> hosts;
  const std::vector<double> expected = predicted_slowly(stats_, layer_, hot, hosts);
  replicate_dynamic(stats_, one_node(std::vector<int>(slots_.size(), 0)), layer_);
  ASSERT_EQ(layer_.predicted_load.size(), expected.size());
  for (std::size_t d = 0; d < expected.size(); ++d) {
    EXPECT_NEAR(layer_.predicted_load[d], expected[d], 1e-6) << "device " << d;
    std::vector<ExpertId> copies;
    if (std::ranges::count(hosts, static_cast<int>(d)) > 0)
      for (const int e : hot) copies.push_back(ExpertId(e));
    EXPECT_EQ(layer_.replicas_of_device[d], copies) << "device " << d;
  }
}

TEST_P(ADynamicReplication, ConservesLoadWithinSlots) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  for (int& slots : slots_) slots = std::max(slots, 1);
  replicate_dynamic(stats_, one_node(slots_), layer_);
  const auto all = static_cast<double>(total());
  EXPECT_NEAR(sum(layer_.predicted_load), all, 1e-9 * all);
  for (std::size_t d = 0; d < slots_.size(); ++d) {
    const auto& primaries = layer_.primaries_of_device[d];
    const auto& replicas = layer_.replicas_of_device[d];
    EXPECT_LE(primaries.size() + replicas.size(), static_cast<std::size_t>(slots_[d]));
    EXPECT_TRUE(std::ranges::is_sorted(replicas));
    for (const ExpertId e : replicas) EXPECT_EQ(std::ranges::count(primaries, e), 0);
    EXPECT_GE(layer_.predicted_load[d], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ADynamicReplication, testing::Range<std::uint64_t>(0, 200));

TEST(ADynamicReplicationOfOneDominantExpert, SpreadsItEvenlyOverDistinctDevices) {
  LayerPlan layer = groups({{0}, {1}, {2}, {3}});
  replicate_dynamic(loads({1000, 0, 0, 0}), one_node({2, 2, 2, 2}), layer);
  EXPECT_THAT(layer.predicted_load, testing::Each(250));
  EXPECT_THAT(layer.replicas_of_device[0], testing::IsEmpty());
  for (std::size_t d = 1; d < 4; ++d)
    EXPECT_THAT(layer.replicas_of_device[d], testing::ElementsAre(ExpertId(0)));
}

TEST(ADynamicReplicationOfAnEmptyLayer, MakesNoCopies) {
  LayerPlan layer = groups({{0}, {1}, {2}, {3}});
  replicate_dynamic(loads({0, 0, 0, 0}), one_node({2, 2, 2, 2}), layer);
  EXPECT_THAT(layer.replicas_of_device, testing::Each(testing::IsEmpty()));
  EXPECT_THAT(layer.predicted_load, testing::Each(0));
}

TEST(ADynamicReplicationOnOneDevice, MakesNoCopies) {
  LayerPlan layer = groups({{0, 1}});
  replicate_dynamic(loads({3, 4}), one_node({0}), layer);
  EXPECT_THAT(layer.replicas_of_device, testing::ElementsAre(testing::IsEmpty()));
  EXPECT_THAT(layer.predicted_load, testing::ElementsAre(7));
}

TEST(ADynamicReplicationWithoutFreeSlots, MakesNoCopies) {
  LayerPlan layer = groups({{0, 1}, {2, 3}});
  replicate_dynamic(loads({30, 40, 1, 1}), one_node({2, 2}), layer);
  EXPECT_THAT(layer.replicas_of_device, testing::Each(testing::IsEmpty()));
  EXPECT_THAT(layer.predicted_load, testing::ElementsAre(70, 2));
}

TEST(ADynamicReplicationOfEqualLoads, GivesTiesToTheLowerId) {
  LayerPlan layer = groups({{0, 1}, {2, 3}, {4, 5}});
  replicate_dynamic(loads({5, 5, 5, 5, 5, 5}), one_node({0, 0, 0}), layer);
  // rho = 1, n = 1: hot is the shortest prefix above 10 / 2, both experts of device 0; the host is device 1.
  EXPECT_THAT(layer.replicas_of_device[1], testing::ElementsAre(ExpertId(0), ExpertId(1)));
  EXPECT_THAT(layer.predicted_load, testing::ElementsAre(5, 15, 10));
}

}  // namespace
}  // namespace grace
