#include "grace/grouping/grouping.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <string>

#include "grace/base/rng.h"

namespace grace {
namespace {

using Groups = std::vector<std::vector<ExpertId>>;

Cluster cluster_of(const std::vector<std::vector<int>>& slots_of_node) {
  Cluster cluster;
  cluster.name = "test";
  for (const std::vector<int>& node : slots_of_node) {
    cluster.devices_of_node.emplace_back();
    for (const int slots : node) cluster.devices_of_node.back().push_back({.slots = slots});
  }
  return cluster;
}

LayerStats empty_stats(int num_experts) {
  const auto n = static_cast<std::size_t>(num_experts);
  return {num_experts, std::vector<std::int64_t>(n * n, 0), std::vector<std::int64_t>(n, 0)};
}

// Pairs of one planted group (expert e is in group e % num_groups) fire about `contrast` times as often as
// others. Counts are large and random, so ties are as good as absent.
LayerStats planted_stats(int num_experts, int num_groups, std::uint64_t contrast, std::uint64_t seed) {
  Rng rng(seed);
  LayerStats stats = empty_stats(num_experts);
  const auto n = static_cast<std::size_t>(num_experts);
  for (std::size_t i = 0; i < n; ++i) {
    stats.load[i] = 1000000 + static_cast<std::int64_t>(rng.below(1000000));
    for (std::size_t j = i + 1; j < n; ++j) {
      const bool together =
          i % static_cast<std::size_t>(num_groups) == j % static_cast<std::size_t>(num_groups);
      const auto pair = static_cast<std::int64_t>((1000000 + rng.below(1000000)) * (together ? contrast : 1));
      stats.affinity[i * n + j] = stats.affinity[j * n + i] = pair;
    }
  }
  return stats;
}

// Expert e of `stats` becomes expert new_id[e].
LayerStats relabelled(const LayerStats& stats, const std::vector<int>& new_id) {
  LayerStats out = empty_stats(stats.num_experts);
  const auto n = static_cast<std::size_t>(stats.num_experts);
  for (std::size_t i = 0; i < n; ++i) {
    out.load[static_cast<std::size_t>(new_id[i])] = stats.load[i];
    for (std::size_t j = 0; j < n; ++j)
      out.affinity[static_cast<std::size_t>(new_id[i]) * n + static_cast<std::size_t>(new_id[j])] =
          stats.affinity[i * n + j];
  }
  return out;
}

std::vector<ExpertId> all_experts(int num_experts) {
  std::vector<ExpertId> experts;
  for (int e = 0; e < num_experts; ++e) experts.push_back(ExpertId(e));
  return experts;
}

std::vector<int> sizes_of(const Grouping& groups, int k) {
  std::vector<int> sizes(static_cast<std::size_t>(k), 0);
  for (const int g : groups) ++sizes.at(static_cast<std::size_t>(g));
  return sizes;
}

// The oracle of a device grouping: every expert once, ascending, within slots, no empty device where experts
// suffice.
void expect_valid(const Groups& groups, int num_experts, const Cluster& cluster) {
  ASSERT_EQ(groups.size(), static_cast<std::size_t>(cluster.num_devices()));
  std::set<ExpertId> seen;
  std::size_t count = 0;
  for (std::size_t d = 0; d < groups.size(); ++d) {
    EXPECT_TRUE(std::ranges::is_sorted(groups[d])) << "device " << d;
    const int slots = cluster.device(DeviceId(static_cast<int>(d))).slots;
    if (slots > 0) {
      EXPECT_LE(groups[d].size(), static_cast<std::size_t>(slots)) << "device " << d;
    }
    if (num_experts >= cluster.num_devices()) {
      EXPECT_FALSE(groups[d].empty()) << "device " << d;
    }
    seen.insert(groups[d].begin(), groups[d].end());
    count += groups[d].size();
  }
  EXPECT_EQ(count, static_cast<std::size_t>(num_experts));
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(num_experts));
}

class ASpectralGrouping : public testing::TestWithParam<std::uint64_t> {};

TEST_P(ASpectralGrouping, RecoversPlantedClusters) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  const int k = 2 + static_cast<int>(rng.below(7));
  const int n = k * (3 + static_cast<int>(rng.below(8))) + static_cast<int>(rng.below(3));
  const LayerStats stats = planted_stats(n, k, 20, GetParam());
  const Grouping groups = spectral_groups(stats, all_experts(n), k);
  std::set<int> ids;
  for (int e = 0; e < n; ++e) {
    EXPECT_EQ(groups[static_cast<std::size_t>(e)], groups[static_cast<std::size_t>(e % k)]) << "expert " << e;
    ids.insert(groups[static_cast<std::size_t>(e)]);
  }
  EXPECT_EQ(ids.size(), static_cast<std::size_t>(k));
}

TEST_P(ASpectralGrouping, SeesOnlyTheExpertsItIsGiven) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  const LayerStats stats = planted_stats(24, 3, 20, GetParam());
  std::vector<ExpertId> odd;
  for (int e = 1; e < 24; e += 2) odd.push_back(ExpertId(e));
  const Grouping groups = spectral_groups(stats, odd, 3);
  ASSERT_EQ(groups.size(), odd.size());
  for (std::size_t i = 0; i < odd.size(); ++i)
    for (std::size_t j = 0; j < odd.size(); ++j)
      EXPECT_EQ(groups[i] == groups[j], odd[i].value % 3 == odd[j].value % 3);
}

TEST_P(ASpectralGrouping, LeavesNoGroupEmptyOnNoise) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  const int n = 1 + static_cast<int>(rng.below(40));
  const int k = 1 + static_cast<int>(rng.below(12));
  LayerStats stats = empty_stats(n);
  const auto size = static_cast<std::size_t>(n);
  for (std::size_t i = 0; i < size; ++i)  // sparse and small: many ties, isolated experts
    for (std::size_t j = i + 1; j < size; ++j)
      stats.affinity[i * size + j] = stats.affinity[j * size + i] =
          rng.below(4) == 0 ? static_cast<int>(rng.below(3)) : 0;
  const Grouping groups = spectral_groups(stats, all_experts(n), k);
  const std::vector<int> sizes = sizes_of(groups, k);
  EXPECT_EQ(std::ranges::count(sizes, 0), std::max(0, k - n));
  EXPECT_EQ(groups, spectral_groups(stats, all_experts(n), k));
}

INSTANTIATE_TEST_SUITE_P(Seeds, ASpectralGrouping, testing::Range<std::uint64_t>(0, 60));

TEST(ASpectralGroupingWithoutAffinity, IsContiguousBlocks) {
  EXPECT_THAT(spectral_groups(empty_stats(7), all_experts(7), 3), testing::ElementsAre(0, 0, 0, 1, 1, 2, 2));
  EXPECT_THAT(spectral_groups(empty_stats(2), all_experts(2), 4), testing::ElementsAre(0, 1));
  EXPECT_THAT(spectral_groups(empty_stats(2), {}, 4), testing::IsEmpty());
}

TEST(ASpectralGroupingOfEqualPairs, IsTheSameEachTime) {
  LayerStats stats = empty_stats(8);
  std::fill(stats.affinity.begin(), stats.affinity.end(), 5);
  for (std::size_t i = 0; i < 8; ++i) stats.affinity[i * 9] = 0;
  const Grouping once = spectral_groups(stats, all_experts(8), 4);
  EXPECT_EQ(once, spectral_groups(stats, all_experts(8), 4));
  EXPECT_THAT(sizes_of(once, 4), testing::Each(testing::Ge(1)));
}

TEST(SizeBoundsOfAGroup, FollowTheFormula) {
  const auto bounds = [](int n, int k, double r) {
    const SizeBounds b = size_bounds(n, k, r);
    return std::pair(b.lowest, b.highest);
  };
  EXPECT_EQ(bounds(64, 8, 0.15), std::pair(7, 9));
  EXPECT_EQ(bounds(64, 8, 0.5), std::pair(4, 12));
  EXPECT_EQ(bounds(64, 8, 0), std::pair(8, 8));
  EXPECT_EQ(bounds(10, 4, 0), std::pair(2, 3));
  EXPECT_EQ(bounds(4, 4, 0.5), std::pair(1, 2));
  EXPECT_EQ(bounds(3, 4, 0.5), std::pair(0, 1));
  EXPECT_EQ(bounds(0, 4, 0.5), std::pair(0, 1));
}

// The size control as the contract words it, every affinity summed anew at each step.
Grouping controlled_slowly(const LayerStats& stats, Grouping groups, int k, SizeBounds bounds) {
  const int n = stats.num_experts;
  const auto at = [&](int e) -> int& { return groups[static_cast<std::size_t>(e)]; };
  const auto size = [&](int g) { return static_cast<int>(std::ranges::count(groups, g)); };
  const auto to_group = [&](int e, int g) {
    std::int64_t sum = 0;
    for (int o = 0; o < n; ++o)
      if (at(o) == g) sum += stats.between(ExpertId(e), ExpertId(o));
    return sum;
  };
  const auto load = [&](int e) { return stats.load[static_cast<std::size_t>(e)]; };
  std::vector<int> overflow;
  for (int g = 0; g < k; ++g) {
    const Grouping before = groups;
    std::vector<std::pair<std::int64_t, int>> weakest_last;
    for (int e = 0; e < n; ++e)
      if (at(e) == g) weakest_last.emplace_back(-to_group(e, g), e);
    std::ranges::sort(weakest_last);
    for (std::size_t i = static_cast<std::size_t>(bounds.highest); i < weakest_last.size(); ++i)
      overflow.push_back(weakest_last[i].second);
  }
  for (const int e : overflow) at(e) = -1;
  std::ranges::sort(overflow, [&](int a, int b) { return std::pair(-load(a), a) < std::pair(-load(b), b); });
  for (const int e : overflow) {
    int best = -1;
    for (int g = 0; g < k; ++g)
      if (size(g) < bounds.highest && (best < 0 || to_group(e, g) > to_group(e, best))) best = g;
    at(e) = best;
  }
  for (int g = 0; g < k; ++g) {
    while (size(g) < bounds.lowest) {
      int weakest = -1;
      for (int e = 0; e < n; ++e)
        if (size(at(e)) > bounds.lowest &&
            (weakest < 0 || to_group(e, at(e)) < to_group(weakest, at(weakest))))
          weakest = e;
      at(weakest) = g;
    }
  }
  return groups;
}

class AControlledGrouping : public testing::TestWithParam<std::uint64_t> {};

TEST_P(AControlledGrouping, StaysInBoundsAndEqualsItsSlowTwin) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  const int n = 1 + static_cast<int>(rng.below(30));
  const int k = 1 + static_cast<int>(rng.below(6));
  LayerStats stats = planted_stats(n, k, 2, GetParam());
  if (GetParam() % 3 == 0)  // ties everywhere
    for (std::int64_t& count : stats.affinity) count /= 1000000;
  Grouping start;
  for (int e = 0; e < n; ++e)
    start.push_back(static_cast<int>(rng.below(1 + rng.below(static_cast<std::uint64_t>(k)))));
  const SizeBounds bounds = size_bounds(n, k, static_cast<double>(rng.below(11)) / 20);
  const Grouping groups = controlled_sizes(stats, all_experts(n), start, k, bounds);
  for (const int size : sizes_of(groups, k)) {
    EXPECT_GE(size, bounds.lowest);
    EXPECT_LE(size, bounds.highest);
  }
  EXPECT_EQ(groups, controlled_slowly(stats, start, k, bounds));
}

INSTANTIATE_TEST_SUITE_P(Seeds, AControlledGrouping, testing::Range<std::uint64_t>(0, 300));

TEST(AControlledGroupingInBounds, IsLeftAlone) {
  const LayerStats stats = planted_stats(8, 2, 5, 1);
  const Grouping start = {1, 1, 1, 0, 0, 0, 0, 0};
  EXPECT_EQ(controlled_sizes(stats, all_experts(8), start, 2, {3, 5}), start);
}

struct Shape {
  const char* name;
  std::vector<std::vector<int>> slots_of_node;
  int num_experts;
};

class AHierarchicalGrouping : public testing::TestWithParam<Shape> {};

TEST_P(AHierarchicalGrouping, IsValidForEveryShapeInputAndR) {
  const Shape& shape = GetParam();
  const Cluster cluster = cluster_of(shape.slots_of_node);
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    for (const double r : {0.0, 0.15, 0.5, 1.0}) {
      SCOPED_TRACE(std::string(shape.name) + " seed " + std::to_string(seed) + " r " + std::to_string(r));
      LayerStats stats = planted_stats(shape.num_experts, 1 + static_cast<int>(seed), 30, seed);
      if (seed == 5) stats = empty_stats(shape.num_experts);
      expect_valid(hierarchical_groups(stats, cluster, r), shape.num_experts, cluster);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AHierarchicalGrouping,
                         testing::Values(Shape{"TwoByFour", {{0, 0, 0, 0}, {0, 0, 0, 0}}, 64},
                                         Shape{"ThreeByTwoOf8", {{0, 0}, {0, 0}, {0, 0}}, 8},
                                         Shape{"ThreeDevicesOf256", {{0, 0, 0}}, 256},
                                         Shape{"UnequalNodes", {{0}, {0, 0, 0}, {0, 0}}, 17},
                                         Shape{"OneDevice", {{0}}, 5}, Shape{"OneExpert", {{0, 0}, {0}}, 1},
                                         Shape{"MoreDevicesThanExperts", {{0, 0, 0, 0}, {0, 0, 0, 0}}, 4},
                                         Shape{"MoreNodesThanExperts", {{0}, {0, 0}, {0}, {0}}, 2},
                                         Shape{"ExactSlots", {{4, 4}, {4, 4}}, 16},
                                         Shape{"UnequalSlots", {{1, 9}, {2, 3, 2}}, 16},
                                         Shape{"SomeUnlimited", {{1, 0}, {1, 1}}, 16},
                                         Shape{"AsManyAsDevices", {{0, 0, 0}, {0, 0}}, 5}),
                         [](const testing::TestParamInfo<Shape>& shape) {
                           return std::string(shape.param.name);
                         });

TEST(AHierarchicalGroupingOfPlantedNodes, KeepsThemTogether) {
  // Eight planted groups on eight devices: each device gets one of them whole.
  const LayerStats stats = planted_stats(64, 8, 40, 3);
  for (const std::vector<ExpertId>& group :
       hierarchical_groups(stats, cluster_of({{0, 0, 0, 0}, {0, 0, 0, 0}}), 0.15)) {
    if (group.size() != 8) continue;
    std::set<int> planted;
    for (const ExpertId e : group) planted.insert(e.value % 8);
    EXPECT_LE(planted.size(), 2u);
  }
}

TEST(AHierarchicalGroupingOfAnEmptyLayer, IsTheDefaultOrder) {
  const Cluster cluster = cluster_of({{0, 0}, {0, 0}});
  EXPECT_EQ(hierarchical_groups(empty_stats(10), cluster, 0.2), contiguous_groups(10, cluster));
}

TEST(AHierarchicalGroupingWithUnequalNodes, GivesTheLargerGroupTheLargerNode) {
  // Two planted clusters of 6 and 18 experts on nodes of three devices and of one.
  LayerStats stats = planted_stats(24, 1, 1, 9);
  for (std::size_t i = 0; i < 24; ++i)
    for (std::size_t j = 0; j < 24; ++j)
      if (i != j && (i < 6) == (j < 6)) stats.affinity[i * 24 + j] *= 50;
  for (const bool large_first : {true, false}) {
    const Cluster cluster = large_first ? cluster_of({{0, 0, 0}, {0}}) : cluster_of({{0}, {0, 0, 0}});
    const Groups groups = hierarchical_groups(stats, cluster, 0.15);
    EXPECT_EQ(groups[large_first ? 3 : 0].size(), 6u);
  }
}

TEST(AContiguousGrouping, GivesTheFirstDevicesOneMoreAndRespectsSlots) {
  const auto sizes = [](const Groups& groups) {
    std::vector<std::size_t> out;
    for (const auto& group : groups) out.push_back(group.size());
    return out;
  };
  EXPECT_THAT(sizes(contiguous_groups(10, cluster_of({{0, 0}, {0, 0}}))), testing::ElementsAre(3, 3, 2, 2));
  EXPECT_THAT(sizes(contiguous_groups(10, cluster_of({{1, 0}, {0, 2}}))), testing::ElementsAre(1, 4, 3, 2));
  EXPECT_THAT(sizes(contiguous_groups(2, cluster_of({{0, 0}, {0, 0}}))), testing::ElementsAre(1, 1, 0, 0));
}

class ARelabelling : public testing::TestWithParam<std::uint64_t> {};

TEST_P(ARelabelling, OnlyRelabelsTheGroups) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  const int n = 24 + static_cast<int>(rng.below(20));
  const LayerStats stats = planted_stats(n, 5, 1 + rng.below(6), GetParam());
  const Cluster cluster = cluster_of({{0, 0, 0}, {0, 0}});
  std::vector<int> new_id(static_cast<std::size_t>(n));
  std::iota(new_id.begin(), new_id.end(), 0);
  rng.shuffle(std::span(new_id));
  Groups expected = hierarchical_groups(stats, cluster, 0.15);
  for (std::vector<ExpertId>& group : expected) {
    for (ExpertId& e : group) e = ExpertId(new_id[e.idx()]);
    std::ranges::sort(group);
  }
  EXPECT_EQ(hierarchical_groups(relabelled(stats, new_id), cluster, 0.15), expected);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ARelabelling, testing::Range<std::uint64_t>(0, 60));

TEST(AKnee, IsThePointFarthestFromTheChord) {
  const std::vector<KneePoint> curve = {{0, 0, 0.10}, {0.1, 1, 0.40}, {0.2, 2, 0.45}, {0.3, 4, 0.50}};
  EXPECT_EQ(knee_of(curve), 1u);
}

TEST(AKnee, OfCurvesWithoutExtentIsTheLowestR) {
  EXPECT_EQ(knee_of(std::vector<KneePoint>{{0, 2, 0.5}, {0.1, 2, 0.5}, {0.2, 2, 0.5}}), 0u);
  EXPECT_EQ(knee_of(std::vector<KneePoint>{{0, 1, 0.5}, {0.1, 2, 0.5}}), 0u);
  EXPECT_EQ(knee_of(std::vector<KneePoint>{{0, 1, 0.1}, {0.1, 2, 0.2}, {0.2, 3, 0.3}}), 0u);
  EXPECT_EQ(knee_of(std::vector<KneePoint>{{0.3, 1, 0.7}}), 0u);
}

TEST(AKnee, GivesTiesToTheLowerR) {
  EXPECT_EQ(knee_of(std::vector<KneePoint>{{0, 0, 0.1}, {0.05, 1, 0.5}, {0.1, 1, 0.5}, {0.15, 2, 0.6}}), 1u);
}

class AKneeOfARandomCurve : public testing::TestWithParam<std::uint64_t> {};

TEST_P(AKneeOfARandomCurve, IsFarthestByTheDistanceOfAPointFromALine) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  std::vector<KneePoint> curve;
  for (int p = 0; p < 11; ++p) curve.push_back({p / 20.0, rng.uniform(), rng.uniform()});
  const std::size_t knee = knee_of(curve);
  const auto by_s = [](const KneePoint& a, const KneePoint& b) {
    return a.size_deviation < b.size_deviation;
  };
  const auto by_u = [](const KneePoint& a, const KneePoint& b) { return a.affinity_kept < b.affinity_kept; };
  const auto [first, last] = std::ranges::minmax_element(curve, by_s);
  const auto [low, high] = std::ranges::minmax_element(curve, by_u);
  const auto distance = [&, f = *first, l = *last, lo = *low, hi = *high](const KneePoint& p) {
    const auto x = [&](const KneePoint& q) {
      return (q.size_deviation - f.size_deviation) / (l.size_deviation - f.size_deviation);
    };
    const auto y = [&](const KneePoint& q) {
      return (q.affinity_kept - lo.affinity_kept) / (hi.affinity_kept - lo.affinity_kept);
    };
    const double dx = x(l) - x(f);
    const double dy = y(l) - y(f);
    return (dx * (y(p) - y(f)) - dy * (x(p) - x(f))) / std::hypot(dx, dy);  // positive above the chord
  };
  for (const KneePoint& point : curve) EXPECT_LE(distance(point), distance(curve[knee]) + 1e-11);
}

INSTANTIATE_TEST_SUITE_P(Seeds, AKneeOfARandomCurve, testing::Range<std::uint64_t>(0, 50));

TEST(AKneeCurve, HasElevenPointsAndIsTheSameAtAnyThreadCount) {
  const std::vector<LayerStats> layers = {planted_stats(32, 5, 4, 1), empty_stats(32),
                                          planted_stats(32, 3, 3, 2)};
  const Cluster cluster = cluster_of({{0, 0}, {0, 0}});
  ThreadPool one(1);
  const std::vector<KneePoint> curve = knee_curve(layers, cluster, one);
  ASSERT_EQ(curve.size(), 11u);
  EXPECT_DOUBLE_EQ(curve.back().r, 0.5);
  for (const int threads : {2, 5}) {
    ThreadPool pool(threads);
    const std::vector<KneePoint> other = knee_curve(layers, cluster, pool);
    for (std::size_t p = 0; p < curve.size(); ++p) {
      EXPECT_EQ(curve[p].size_deviation, other[p].size_deviation);
      EXPECT_EQ(curve[p].affinity_kept, other[p].affinity_kept);
    }
  }
  EXPECT_LT(knee_of(curve), curve.size());
}

TEST(AKneeCurveOfEmptyLayers, HasNoExtentAndNoNaN) {
  const std::vector<LayerStats> layers = {empty_stats(8)};
  ThreadPool pool(1);
  const std::vector<KneePoint> curve = knee_curve(layers, cluster_of({{0, 0}, {0, 0}}), pool);
  for (const KneePoint& point : curve) {
    EXPECT_EQ(point.size_deviation, 0);
    EXPECT_EQ(point.affinity_kept, 1);
  }
  EXPECT_EQ(knee_of(curve), 0u);
}

}  // namespace
}  // namespace grace
