#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>

#include "grace/base/rng.h"
#include "grace/grouping/grouping.h"

namespace grace {
namespace {

using Groups = std::vector<std::vector<ExpertId>>;

Cluster cluster_of(const std::vector<std::vector<int>>& slots_of_node) {
  Cluster cluster;
  for (const std::vector<int>& node : slots_of_node) {
    cluster.devices_of_node.emplace_back();
    for (const int slots : node) cluster.devices_of_node.back().push_back({.slots = slots});
  }
  return cluster;
}

// Counts are large and random, so ties are as good as absent. Experts of one class fire together more often.
LayerStats random_stats(int num_experts, const std::vector<int>& class_of_expert, Rng& rng) {
  LayerStats stats;
  stats.num_experts = num_experts;
  const auto n = static_cast<std::size_t>(num_experts);
  stats.affinity.assign(n * n, 0);
  for (std::size_t i = 0; i < n; ++i) {
    stats.load.push_back(1000000 + static_cast<std::int64_t>(rng.below(1000000)));
    for (std::size_t j = 0; j < i; ++j) {
      const bool together = class_of_expert[i] == class_of_expert[j];
      stats.affinity[i * n + j] = stats.affinity[j * n + i] =
          static_cast<std::int64_t>((1000000 + rng.below(1000000)) * (together ? 50 : 1));
    }
  }
  return stats;
}

std::int64_t kept_inside(const LayerStats& stats, const Groups& groups,
                         const std::vector<int>& place_of_group) {
  std::int64_t kept = 0;
  for (std::size_t a = 0; a < groups.size(); ++a)
    for (std::size_t b = 0; b < groups.size(); ++b)
      if (place_of_group[a] == place_of_group[b])
        for (const ExpertId i : groups[a])
          for (const ExpertId j : groups[b]) kept += stats.between(i, j);
  return kept;
}

std::vector<int> nodes_of(const Cluster& cluster) {
  std::vector<int> nodes;
  for (int d = 0; d < cluster.num_devices(); ++d) nodes.push_back(cluster.node_of(DeviceId(d)).value);
  return nodes;
}

void expect_every_expert_once(const Groups& groups, int num_experts) {
  std::set<ExpertId> seen;
  for (const std::vector<ExpertId>& group : groups) {
    EXPECT_TRUE(std::ranges::is_sorted(group));
    seen.insert(group.begin(), group.end());
  }
  std::size_t count = 0;
  for (const std::vector<ExpertId>& group : groups) count += group.size();
  EXPECT_EQ(count, static_cast<std::size_t>(num_experts));
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(num_experts));
}

class AUniformGrouping : public testing::TestWithParam<std::uint64_t> {
 protected:
  void SetUp() override {
    Rng rng(GetParam());
    num_experts_ = 1 + static_cast<int>(rng.below(40));
    std::vector<std::vector<int>> slots(1 + rng.below(4));
    for (std::vector<int>& node : slots) node.resize(1 + rng.below(4), 0);
    open_ = cluster_of(slots);
    const int fewest = (num_experts_ + open_.num_devices() - 1) / open_.num_devices();
    for (std::vector<int>& node : slots)
      for (int& s : node) s = fewest + static_cast<int>(rng.below(3));
    slotted_ = cluster_of(slots);
    std::vector<int> classes(static_cast<std::size_t>(num_experts_));
    for (int& c : classes) c = static_cast<int>(rng.below(5));
    stats_ = random_stats(num_experts_, classes, rng);
  }

  int num_experts_ = 0;
  Cluster open_;     // without slots
  Cluster slotted_;  // the same shape with unequal slots that suffice
  LayerStats stats_;
};

TEST_P(AUniformGrouping, HasGroupsOfOneSizeOnAnyShape) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  const Groups groups = uniform_groups(stats_, open_);
  expect_every_expert_once(groups, num_experts_);
  for (const std::vector<ExpertId>& group : groups) {
    EXPECT_GE(static_cast<int>(group.size()), num_experts_ / open_.num_devices());
    EXPECT_LE(static_cast<int>(group.size()), (num_experts_ + open_.num_devices() - 1) / open_.num_devices());
  }
}

TEST_P(AUniformGrouping, StaysWithinUnequalSlots) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  const Groups groups = uniform_groups(stats_, slotted_);
  expect_every_expert_once(groups, num_experts_);
  for (int d = 0; d < slotted_.num_devices(); ++d)
    EXPECT_LE(groups[DeviceId(d).idx()].size(), static_cast<std::size_t>(slotted_.device(DeviceId(d)).slots));
}

TEST_P(AUniformGrouping, CannotKeepMoreInsideNodesByAnyTwoGroupsChangingPlaces) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  const Groups groups = uniform_groups(stats_, open_);
  std::vector<int> place = nodes_of(open_);
  const std::int64_t kept = kept_inside(stats_, groups, place);
  for (std::size_t a = 0; a < place.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) {
      std::swap(place[a], place[b]);
      EXPECT_LE(kept_inside(stats_, groups, place), kept) << "groups " << a << " and " << b;
      std::swap(place[a], place[b]);
    }
}

TEST_P(AUniformGrouping, IsLaidOnTwoNodesOfThreeAsWellAsCanBe) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  const Cluster cluster = cluster_of({{0, 0, 0}, {0, 0, 0}});
  const Groups groups = uniform_groups(stats_, cluster);
  const std::int64_t kept = kept_inside(stats_, groups, nodes_of(cluster));
  std::vector<int> place{0, 0, 0, 1, 1, 1};
  do EXPECT_LE(kept_inside(stats_, groups, place), kept);
  while (std::ranges::next_permutation(place).found);
}

TEST_P(AUniformGrouping, IsRelabelledWhenItsExpertsAre) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam() + 1000);
  std::vector<std::int32_t> new_id(static_cast<std::size_t>(num_experts_));
  std::iota(new_id.begin(), new_id.end(), 0);
  rng.shuffle(std::span(new_id));
  LayerStats other = stats_;
  for (std::size_t i = 0; i < new_id.size(); ++i) {
    const auto to = static_cast<std::size_t>(new_id[i]);
    other.load[to] = stats_.load[i];
    for (std::size_t j = 0; j < new_id.size(); ++j)
      other.affinity[to * new_id.size() + static_cast<std::size_t>(new_id[j])] =
          stats_.affinity[i * new_id.size() + j];
  }
  if (num_experts_ <= open_.num_devices()) return;  // one expert each is dealt by id
  Groups expected = uniform_groups(stats_, open_);
  for (std::vector<ExpertId>& group : expected) {
    for (ExpertId& e : group) e = ExpertId(new_id[e.idx()]);
    std::ranges::sort(group);
  }
  EXPECT_EQ(uniform_groups(other, open_), expected);
}

TEST_P(AUniformGrouping, OfTwoLevelsHasNodesOfEqualShareAndDevicesOfOneSize) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  const TwoLevels levels = two_levels(stats_, open_, NodeSizes::kEqual);
  const Groups groups = device_groups(stats_, open_, levels, 0);
  expect_every_expert_once(groups, num_experts_);
  std::size_t first = 0;
  for (const std::vector<Device>& node : open_.devices_of_node) {
    int in_node = 0;
    for (std::size_t d = first; d < first + node.size(); ++d) in_node += static_cast<int>(groups[d].size());
    const int share = num_experts_ * static_cast<int>(node.size());
    if (!levels.nodes.empty()) {
      EXPECT_GE(in_node, share / open_.num_devices());
      EXPECT_LE(in_node, (share + open_.num_devices() - 1) / open_.num_devices());
    }
    const int devices = static_cast<int>(node.size());
    for (std::size_t d = first; d < first + node.size() && !levels.nodes.empty(); ++d) {
      EXPECT_GE(static_cast<int>(groups[d].size()), in_node / devices);
      EXPECT_LE(static_cast<int>(groups[d].size()), (in_node + devices - 1) / devices);
    }
    first += node.size();
  }
  const Groups slotted = device_groups(stats_, slotted_, two_levels(stats_, slotted_, NodeSizes::kEqual), 0);
  expect_every_expert_once(slotted, num_experts_);
  for (int d = 0; d < slotted_.num_devices(); ++d)
    EXPECT_LE(slotted[DeviceId(d).idx()].size(),
              static_cast<std::size_t>(slotted_.device(DeviceId(d)).slots));
}

TEST_P(AUniformGrouping, BecomesFreeWithoutASizeBound) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  const TwoLevels levels = two_levels(stats_, open_);
  const Groups groups = device_groups(stats_, open_, levels, kNoSizeBound);
  expect_every_expert_once(groups, num_experts_);
  std::size_t first = 0;
  for (std::size_t node = 0; node < levels.nodes.size(); ++node) {
    const NodeGroup& group = levels.nodes[node];
    for (std::size_t i = 0; i < group.experts.size(); ++i) {
      const auto d = first + static_cast<std::size_t>(group.group_of_expert[i]);
      EXPECT_TRUE(std::ranges::binary_search(groups[d], group.experts[i])) << "left alone";
    }
    first += open_.devices_of_node[node].size();
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, AUniformGrouping, testing::Range<std::uint64_t>(0, 120));

TEST(AUniformGroupingOfPlantedClasses, PutsEachOnADeviceAndNeighboursOnANode) {
  // Classes 0 to 3 by expert mod 4; 0 and 2 fire with each other, and so do 1 and 3.
  Rng rng(5);
  std::vector<int> classes;
  for (int e = 0; e < 16; ++e) classes.push_back(e % 4);
  LayerStats stats = random_stats(16, classes, rng);
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < 16; ++j)
      if (i % 4 != j % 4 && i % 2 == j % 2) stats.affinity[i * 16 + j] *= 8;
  const Cluster cluster = cluster_of({{0, 0}, {0, 0}});
  const Groups groups = uniform_groups(stats, cluster);
  for (const std::vector<ExpertId>& group : groups) {
    ASSERT_EQ(group.size(), 4u);
    for (const ExpertId e : group) EXPECT_EQ(e.value % 4, group.front().value % 4);
  }
  EXPECT_EQ(groups[0].front().value % 2, groups[1].front().value % 2);
  EXPECT_EQ(groups[2].front().value % 2, groups[3].front().value % 2);
}

TEST(AUniformGroupingWithoutAffinity, IsTheDefaultOrder) {
  LayerStats stats{10, std::vector<std::int64_t>(100, 0), std::vector<std::int64_t>(10, 3)};
  const Cluster cluster = cluster_of({{0, 0}, {0, 0}});
  EXPECT_EQ(uniform_groups(stats, cluster), contiguous_groups(10, cluster));
}

}  // namespace
}  // namespace grace
