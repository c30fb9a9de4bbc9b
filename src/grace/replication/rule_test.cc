#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
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

LayerStats stats_of(std::vector<std::int64_t> load) {
  LayerStats stats;
  stats.num_experts = static_cast<int>(load.size());
  stats.affinity.assign(load.size() * load.size(), 0);
  stats.load = std::move(load);
  return stats;
}

void connect(LayerStats& stats, int a, int b, std::int64_t count) {
  const auto n = static_cast<std::size_t>(stats.num_experts);
  stats.affinity[static_cast<std::size_t>(a) * n + static_cast<std::size_t>(b)] = count;
  stats.affinity[static_cast<std::size_t>(b) * n + static_cast<std::size_t>(a)] = count;
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

// The rule in the words of its contract, in floating point, for clusters whose slots do not bind.
struct Expected {
  std::set<int> hot;
  std::set<std::size_t> hosts;
  std::vector<double> load;
};
Expected expected_by(const ReplicationRule& rule, const LayerStats& stats, const LayerPlan& layer) {
  Expected out;
  const std::size_t num_devices = layer.primaries_of_device.size();
  for (const auto& group : layer.primaries_of_device) {
    out.load.push_back(0);
    for (const ExpertId e : group) out.load.back() += static_cast<double>(stats.load[e.idx()]);
  }
  std::size_t heavy = 0;
  for (std::size_t d = 1; d < num_devices; ++d)
    if (out.load[d] > out.load[heavy]) heavy = d;
  const double w_max = out.load[heavy];
  const double rho = w_max / (sum(out.load) / static_cast<double>(num_devices));
  const int wanted =
      rule.num_hosts > 0 ? rule.num_hosts : std::max(1, static_cast<int>(std::floor(rho + 1e-9)));
  const int n = std::min(wanted, static_cast<int>(num_devices) - 1);

  std::vector<std::pair<std::int64_t, int>> ranked;  // minus the heat, expert
  for (const ExpertId e : layer.primaries_of_device[heavy]) {
    std::int64_t heat = stats.load[e.idx()];
    if (rule.hot_by == HotBy::kCollaboration) {
      heat = 0;
      for (const ExpertId other : layer.primaries_of_device[heavy]) heat += stats.between(e, other);
    }
    ranked.emplace_back(-heat, e.value);
  }
  std::ranges::sort(ranked);
  double hot_load = 0;
  for (const auto& [minus_heat, e] : ranked) {
    const bool enough = rule.num_hot > 0 ? static_cast<int>(out.hot.size()) >= rule.num_hot
                                         : hot_load > w_max * n / (1 + n) + 1e-9;
    if (enough) break;
    out.hot.insert(e);
    hot_load += static_cast<double>(stats.load[static_cast<std::size_t>(e)]);
  }
  std::vector<std::pair<double, std::size_t>> others;
  for (std::size_t d = 0; d < num_devices; ++d)
    if (d != heavy) others.emplace_back(out.load[d], d);
  std::ranges::sort(others);
  const double share = (rule.predicted == PredictedLoads::kPublished ? w_max : hot_load) / (n + 1);
  for (int i = 0; i < n; ++i) {
    out.hosts.insert(others[static_cast<std::size_t>(i)].second);
    out.load[others[static_cast<std::size_t>(i)].second] += share;
  }
  if (rule.predicted == PredictedLoads::kConserved || hot_load > 0) out.load[heavy] += share - hot_load;
  return out;
}

class AReplicationRule : public testing::TestWithParam<std::uint64_t> {
 protected:
  void SetUp() override {
    Rng rng(GetParam());
    const int num_experts = 1 + static_cast<int>(rng.below(40));
    std::vector<std::int64_t> load;
    for (int e = 0; e < num_experts; ++e)
      load.push_back(1 + static_cast<std::int64_t>(rng.below(rng.below(6) == 0 ? 100000 : 1000)));
    stats_ = stats_of(std::move(load));
    for (int a = 0; a < num_experts; ++a)
      for (int b = 0; b < a; ++b) connect(stats_, a, b, static_cast<std::int64_t>(rng.below(50)));
    std::vector<std::vector<int>> experts(2 + rng.below(7));
    for (int e = 0; e < num_experts; ++e) experts[rng.below(experts.size())].push_back(e);
    layer_ = groups(experts);
    for (const auto& group : experts)
      slots_.push_back(std::max(1, static_cast<int>(group.size() + rng.below(3))));
    rule_.num_hosts = static_cast<int>(rng.below(5));
    rule_.num_hot = static_cast<int>(rng.below(6));
    rule_.hot_by = rng.below(2) == 0 ? HotBy::kLoad : HotBy::kCollaboration;
    rule_.predicted = rng.below(2) == 0 ? PredictedLoads::kConserved : PredictedLoads::kPublished;
  }

  LayerStats stats_;
  LayerPlan layer_;
  std::vector<int> slots_;
  ReplicationRule rule_;
};

TEST_P(AReplicationRule, EqualsItsSlowTwinWhereSlotsDoNotBind) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  const Expected expected = expected_by(rule_, stats_, layer_);
  replicate_heaviest_group(stats_, one_node(std::vector<int>(slots_.size(), 0)), rule_, layer_);
  ASSERT_EQ(layer_.predicted_load.size(), expected.load.size());
  for (std::size_t d = 0; d < expected.load.size(); ++d) {
    EXPECT_NEAR(layer_.predicted_load[d], expected.load[d], 1e-6) << "device " << d;
    std::vector<ExpertId> copies;
    if (expected.hosts.contains(d))
      for (const int e : expected.hot) copies.push_back(ExpertId(e));
    EXPECT_EQ(layer_.replicas_of_device[d], copies) << "device " << d;
  }
}

TEST_P(AReplicationRule, KeepsWithinSlotsAndPredictsNothingNegative) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  replicate_heaviest_group(stats_, one_node(slots_), rule_, layer_);
  for (std::size_t d = 0; d < slots_.size(); ++d) {
    const auto& primaries = layer_.primaries_of_device[d];
    const auto& replicas = layer_.replicas_of_device[d];
    EXPECT_LE(primaries.size() + replicas.size(), static_cast<std::size_t>(slots_[d]));
    for (const ExpertId e : replicas) EXPECT_EQ(std::ranges::count(primaries, e), 0);
    EXPECT_GE(layer_.predicted_load[d], 0);
  }
  if (rule_.predicted == PredictedLoads::kPublished) return;
  const auto all =
      static_cast<double>(std::accumulate(stats_.load.begin(), stats_.load.end(), std::int64_t{0}));
  EXPECT_NEAR(sum(layer_.predicted_load), all, 1e-9 * all);
}

INSTANTIATE_TEST_SUITE_P(Seeds, AReplicationRule, testing::Range<std::uint64_t>(0, 300));

TEST(AFixedReplicationRule, CopiesToOneDeviceWhateverTheSkew) {
  LayerPlan layer = groups({{0, 1}, {2}, {3}, {4}});
  replicate_heaviest_group(stats_of({900, 10, 1, 2, 3}), one_node({0, 0, 0, 0}), {.num_hosts = 1}, layer);
  EXPECT_THAT(layer.replicas_of_device[1], testing::ElementsAre(ExpertId(0)));
  EXPECT_THAT(layer.replicas_of_device[2], testing::IsEmpty());
  EXPECT_THAT(layer.predicted_load, testing::ElementsAre(460, 451, 2, 3));
}

TEST(APublishedPrediction, AddsAShareOfTheWholeGroupToEachHost) {
  // W_max = 30 + 20 + 10, n = 1: hot is {0, 1}, W_r = 50, W_p = 60 / 2.
  LayerPlan layer = groups({{0, 1, 2}, {3}});
  replicate_heaviest_group(stats_of({30, 20, 10, 15}), one_node({0, 0}),
                           {.predicted = PredictedLoads::kPublished}, layer);
  EXPECT_THAT(layer.predicted_load, testing::ElementsAre(60 - 50 + 30, 15 + 30));
}

TEST(ACollaborationRule, CopiesWhoFiresWithItsGroupNotWhoFiresMost) {
  LayerStats stats = stats_of({90, 20, 10, 1});
  connect(stats, 1, 2, 9);
  connect(stats, 0, 3, 50);  // outside the group: does not count
  LayerPlan layer = groups({{0, 1, 2}, {3}});
  replicate_heaviest_group(stats, one_node({0, 0}), {.num_hot = 1, .hot_by = HotBy::kCollaboration}, layer);
  EXPECT_THAT(layer.replicas_of_device[1], testing::ElementsAre(ExpertId(1)));
  replicate_heaviest_group(stats, one_node({0, 0}), {.num_hot = 1}, layer);
  EXPECT_THAT(layer.replicas_of_device[1], testing::ElementsAre(ExpertId(0)));
}

TEST(ASweptRule, CopiesTheWholeGroupEverywhereAtTheMost) {
  LayerPlan layer = groups({{0, 1}, {2}, {3}});
  replicate_heaviest_group(stats_of({30, 20, 4, 5}), one_node({0, 0, 0}), {.num_hosts = 9, .num_hot = 9},
                           layer);
  for (const std::size_t d : {1U, 2U})
    EXPECT_THAT(layer.replicas_of_device[d], testing::ElementsAre(ExpertId(0), ExpertId(1)));
}

TEST(ARuleWithoutLoad, MakesNoCopies) {
  for (const PredictedLoads predicted : {PredictedLoads::kConserved, PredictedLoads::kPublished}) {
    LayerPlan layer = groups({{0, 1}, {2}});
    replicate_heaviest_group(stats_of({0, 0, 0}), one_node({0, 0}), {.num_hot = 2, .predicted = predicted},
                             layer);
    EXPECT_THAT(layer.replicas_of_device, testing::Each(testing::IsEmpty()));
    EXPECT_THAT(layer.predicted_load, testing::Each(0));
  }
}

TEST(NoReplication, PredictsWhatThePrimariesDraw) {
  LayerPlan layer = groups({{0, 2}, {}, {1}});
  replicate_nothing(stats_of({3, 4, 5}), layer);
  EXPECT_THAT(layer.replicas_of_device, testing::Each(testing::IsEmpty()));
  EXPECT_THAT(layer.predicted_load, testing::ElementsAre(8, 0, 4));
}

}  // namespace
}  // namespace grace
