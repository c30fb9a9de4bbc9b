#include "grace/replication/eplb.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "grace/base/rng.h"

namespace grace {
namespace {

using Loads = std::vector<std::int64_t>;
using Groups = std::vector<std::vector<ExpertId>>;

std::vector<int> ids(const std::vector<ExpertId>& experts) {
  std::vector<int> values;
  for (const ExpertId e : experts) values.push_back(e.value);
  return values;
}

Groups groups(const std::vector<std::vector<int>>& experts_of_device) {
  Groups out;
  for (const std::vector<int>& experts : experts_of_device) {
    out.emplace_back();
    for (const int e : experts) out.back().push_back(ExpertId(e));
  }
  return out;
}

Cluster cluster_of(const std::vector<int>& devices_per_node) {
  Cluster cluster;
  for (const int devices : devices_per_node)
    cluster.devices_of_node.emplace_back(static_cast<std::size_t>(devices));
  return cluster;
}

// Copies on each device, primaries and replicas together, ascending.
Groups copies_of(const LayerPlan& layer) {
  Groups out = layer.primaries_of_device;
  for (std::size_t d = 0; d < out.size(); ++d) {
    const std::vector<ExpertId>& replicas = layer.replicas_of_device[d];
    out[d].insert(out[d].end(), replicas.begin(), replicas.end());
    std::ranges::sort(out[d]);
  }
  return out;
}

TEST(ThePublishedEplb, IsThePublishedOneOfThePublishedExample) {
  const EplbShape shape{.num_physical = 16, .num_groups = 4, .num_nodes = 2, .num_devices = 8};
  EXPECT_THAT(ids(eplb_physical_to_logical(Loads{90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86}, shape)),
              testing::ElementsAre(5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1));
  EXPECT_THAT(
      ids(eplb_physical_to_logical(Loads{20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27}, shape)),
      testing::ElementsAre(7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1));
}

// What the published code is known to do, faults included.
TEST(ThePublishedEplb, KeepsThePublishedHabits) {
  const EplbShape shape{.num_physical = 8, .num_devices = 4};
  EXPECT_THAT(ids(eplb_physical_to_logical(Loads{0, 0, 0, 0}, shape)),
              testing::ElementsAre(0, 1, 2, 3, 0, 0, 0, 0));
  EXPECT_THAT(ids(eplb_physical_to_logical(Loads{1000, 0, 0, 0}, shape)),
              testing::ElementsAre(0, 0, 0, 1, 0, 2, 0, 3));
  EXPECT_THAT(ids(eplb_physical_to_logical(Loads{1, 9, 4, 7}, {.num_physical = 4, .num_devices = 4})),
              testing::ElementsAre(0, 1, 2, 3));
}

TEST(ThePublishedEplb, GivesTiesToTheLowerIndex) {
  EXPECT_THAT(ids(eplb_physical_to_logical(Loads{5, 5, 5, 5}, {.num_physical = 6, .num_devices = 2})),
              testing::ElementsAre(2, 0, 0, 3, 1, 1));
}

TEST(AnEplbLayerWithoutLoad, SpreadsCopiesEvenlyOverDistinctDevices) {
  for (const EplbLevels levels : {EplbLevels::kHierarchical, EplbLevels::kFlat}) {
    const EplbLayer made =
        eplb_layer(Loads{0, 0, 0, 0}, cluster_of({2, 2}), std::vector<int>{2, 2, 2, 2}, levels);
    std::vector<int> copies(4, 0);
    for (const std::vector<ExpertId>& experts : copies_of(made.layer)) {
      EXPECT_EQ(experts.size(), 2u);
      EXPECT_NE(experts.front(), experts.back());
      for (const ExpertId e : experts) ++copies[e.idx()];
    }
    EXPECT_THAT(copies, testing::Each(2));
    EXPECT_THAT(made.layer.predicted_load, testing::Each(0));
  }
}

TEST(AnEplbLayerOfOneDominantExpert, HasItOnceOnEachDeviceAndOthersInTheSpareSlots) {
  const EplbLayer made =
      eplb_layer(Loads{1000, 0, 0, 0}, cluster_of({4}), std::vector<int>{2, 2, 2, 2}, EplbLevels::kFlat);
  EXPECT_EQ(copies_of(made.layer), groups({{0, 1}, {0, 1}, {0, 2}, {0, 3}}));
  EXPECT_THAT(made.layer.predicted_load, testing::Each(250));
  EXPECT_EQ(made.second_copies_moved, 1);
}

// The published code line by line, for one layer, its tensors as vectors.
namespace published {

using Ints = std::vector<int>;
using Floats = std::vector<double>;

struct Packing {
  Ints pack_index;
  Ints rank_in_pack;
};
Packing balanced_packing(const Floats& weight, int num_packs) {
  const int num_groups = static_cast<int>(weight.size());
  const int groups_per_pack = num_groups / num_packs;
  Packing out{Ints(weight.size(), -1), Ints(weight.size(), -1)};
  if (groups_per_pack == 1) {
    std::iota(out.pack_index.begin(), out.pack_index.end(), 0);
    std::ranges::fill(out.rank_in_pack, 0);
    return out;
  }
  Ints indices(weight.size());
  std::iota(indices.begin(), indices.end(), 0);
  std::ranges::stable_sort(indices, [&](int a, int b) {
    return weight[static_cast<std::size_t>(a)] > weight[static_cast<std::size_t>(b)];
  });
  Floats pack_weights(static_cast<std::size_t>(num_packs), 0);
  Ints pack_items(static_cast<std::size_t>(num_packs), 0);
  for (const int group : indices) {
    int pack = -1;
    for (int i = 0; i < num_packs; ++i)
      if (pack_items[static_cast<std::size_t>(i)] < groups_per_pack &&
          (pack < 0 ||
           pack_weights[static_cast<std::size_t>(i)] < pack_weights[static_cast<std::size_t>(pack)]))
        pack = i;
    out.pack_index[static_cast<std::size_t>(group)] = pack;
    out.rank_in_pack[static_cast<std::size_t>(group)] = pack_items[static_cast<std::size_t>(pack)];
    pack_weights[static_cast<std::size_t>(pack)] += weight[static_cast<std::size_t>(group)];
    ++pack_items[static_cast<std::size_t>(pack)];
  }
  return out;
}

struct Replicas {
  Ints phy2log;
  Ints logcnt;
};
Replicas replicate_experts(const Floats& weight, int num_phy) {
  const int num_log = static_cast<int>(weight.size());
  Replicas out{Ints(static_cast<std::size_t>(num_log)), Ints(static_cast<std::size_t>(num_log), 1)};
  std::iota(out.phy2log.begin(), out.phy2log.end(), 0);
  for (int i = num_log; i < num_phy; ++i) {
    std::size_t redundant = 0;
    for (std::size_t e = 1; e < weight.size(); ++e)
      if (weight[e] / out.logcnt[e] > weight[redundant] / out.logcnt[redundant]) redundant = e;
    out.phy2log.push_back(static_cast<int>(redundant));
    ++out.logcnt[redundant];
  }
  return out;
}

Ints inverse(const Ints& perm) {
  Ints inv(perm.size());
  for (std::size_t i = 0; i < perm.size(); ++i) inv[static_cast<std::size_t>(perm[i])] = static_cast<int>(i);
  return inv;
}

Ints rebalance(const Loads& load, int num_physical, int num_groups, int num_nodes, int num_gpus) {
  if (num_groups % num_nodes != 0) {
    num_groups = 1;
    num_nodes = 1;
  }
  const int num_logical = static_cast<int>(load.size());
  const int group_size = num_logical / num_groups;
  const int groups_per_node = num_groups / num_nodes;
  const int phy_per_gpu = num_physical / num_gpus;
  const int log_per_node = num_logical / num_nodes;

  Floats tokens_per_group(static_cast<std::size_t>(num_groups), 0);
  for (int e = 0; e < num_logical; ++e)
    tokens_per_group[static_cast<std::size_t>(e / group_size)] +=
        static_cast<double>(load[static_cast<std::size_t>(e)]);
  const Packing packing = balanced_packing(tokens_per_group, num_nodes);
  Ints log2mlog;
  for (int g = 0; g < num_groups; ++g)
    for (int i = 0; i < group_size; ++i)
      log2mlog.push_back((packing.pack_index[static_cast<std::size_t>(g)] * groups_per_node +
                          packing.rank_in_pack[static_cast<std::size_t>(g)]) *
                             group_size +
                         i);
  const Ints mlog2log = inverse(log2mlog);

  Ints physical_to_logical;
  for (int node = 0; node < num_nodes; ++node) {
    Floats tokens_per_mlog;
    for (int i = 0; i < log_per_node; ++i)
      tokens_per_mlog.push_back(static_cast<double>(
          load[static_cast<std::size_t>(mlog2log[static_cast<std::size_t>(node * log_per_node + i)])]));
    const Replicas replicas = replicate_experts(tokens_per_mlog, num_physical / num_nodes);
    Floats tokens_per_phy;
    for (const int mlog : replicas.phy2log)
      tokens_per_phy.push_back(tokens_per_mlog[static_cast<std::size_t>(mlog)] /
                               replicas.logcnt[static_cast<std::size_t>(mlog)]);
    const Packing gpus = balanced_packing(tokens_per_phy, num_gpus / num_nodes);
    Ints phy2pphy;
    for (std::size_t p = 0; p < tokens_per_phy.size(); ++p)
      phy2pphy.push_back(gpus.pack_index[p] * phy_per_gpu + gpus.rank_in_pack[p]);
    for (const int phy : inverse(phy2pphy)) {
      const int mlog = replicas.phy2log[static_cast<std::size_t>(phy)] + node * log_per_node;
      physical_to_logical.push_back(mlog2log[static_cast<std::size_t>(mlog)]);
    }
  }
  return physical_to_logical;
}

}  // namespace published

class AnEplbMap : public testing::TestWithParam<std::uint64_t> {};

TEST_P(AnEplbMap, EqualsThePublishedCodeTransliterated) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  EplbShape shape;
  shape.num_nodes = 1 + static_cast<int>(rng.below(4));
  shape.num_devices = shape.num_nodes * (1 + static_cast<int>(rng.below(4)));
  shape.num_groups = static_cast<int>(1 + rng.below(3)) * (rng.below(4) == 0 ? 1 : shape.num_nodes);
  const int num_experts = shape.num_groups * static_cast<int>(1 + rng.below(6));
  const int fewest = (num_experts + shape.num_devices - 1) / shape.num_devices;
  shape.num_physical = shape.num_devices * (fewest + static_cast<int>(rng.below(4)));
  const std::uint64_t bound = rng.below(3) == 0 ? 4 : 100000;  // with and without ties
  Loads load;
  for (int e = 0; e < num_experts; ++e) load.push_back(static_cast<std::int64_t>(rng.below(bound)));
  EXPECT_EQ(
      ids(eplb_physical_to_logical(load, shape)),
      published::rebalance(load, shape.num_physical, shape.num_groups, shape.num_nodes, shape.num_devices));
}

INSTANTIATE_TEST_SUITE_P(Seeds, AnEplbMap, testing::Range<std::uint64_t>(0, 500));

int second_copies(const Groups& experts_of_device) {
  int seconds = 0;
  for (std::vector<ExpertId> experts : experts_of_device) {
    std::ranges::sort(experts);
    for (std::size_t i = 1; i < experts.size(); ++i) seconds += experts[i] == experts[i - 1] ? 1 : 0;
  }
  return seconds;
}

// A layer, a cluster and slots that hold it; loads are distinct and so large that no two shares are equal.
class AnEplbLayer : public testing::TestWithParam<std::uint64_t> {
 protected:
  void SetUp() override {
    Rng rng(GetParam());
    std::vector<int> devices_per_node(1 + rng.below(4));
    for (int& devices : devices_per_node) devices = 1 + static_cast<int>(rng.below(4));
    cluster_ = cluster_of(devices_per_node);
    const int num_experts = 1 + static_cast<int>(rng.below(40));
    const bool skewed = rng.below(3) == 0;
    for (int e = 0; e < num_experts; ++e)
      load_.push_back(1 + static_cast<std::int64_t>(rng.below(skewed && e > 0 ? 1ULL << 30 : 1ULL << 40)));
    const int fewest = (num_experts + cluster_.num_devices() - 1) / cluster_.num_devices();
    for (int d = 0; d < cluster_.num_devices(); ++d)
      slots_.push_back(std::min(num_experts, fewest + static_cast<int>(rng.below(5))));
    levels_ = rng.below(2) == 0 ? EplbLevels::kHierarchical : EplbLevels::kFlat;
  }

  Cluster cluster_;
  Loads load_;
  std::vector<int> slots_;
  EplbLevels levels_ = EplbLevels::kFlat;
};

TEST_P(AnEplbLayer, FillsEverySlotAndHasNoExpertTwiceOnADevice) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  const EplbLayer made = eplb_layer(load_, cluster_, slots_, levels_);
  const Groups held = copies_of(made.layer);
  EXPECT_EQ(second_copies(held), 0);
  std::vector<int> copies(load_.size(), 0);
  for (std::size_t d = 0; d < held.size(); ++d) {
    EXPECT_EQ(held[d].size(), static_cast<std::size_t>(slots_[d])) << "device " << d;
    for (const ExpertId e : held[d]) ++copies[e.idx()];
  }
  EXPECT_THAT(copies, testing::Each(testing::Ge(1)));
  double total = 0;
  for (std::size_t d = 0; d < held.size(); ++d) {
    double load = 0;
    for (const ExpertId e : held[d]) load += static_cast<double>(load_[e.idx()]) / copies[e.idx()];
    EXPECT_NEAR(made.layer.predicted_load[d], load, 1e-9 * load) << "device " << d;
    total += load;
  }
  const auto all = static_cast<double>(std::accumulate(load_.begin(), load_.end(), std::int64_t{0}));
  EXPECT_NEAR(total, all, 1e-9 * all);
}

TEST_P(AnEplbLayer, IsRelabelledWhenItsExpertsAre) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam() + 1000);
  std::vector<std::int32_t> new_id(load_.size());
  std::iota(new_id.begin(), new_id.end(), 0);
  rng.shuffle(std::span(new_id));
  Loads relabelled(load_.size());
  for (std::size_t e = 0; e < load_.size(); ++e) relabelled[static_cast<std::size_t>(new_id[e])] = load_[e];
  // One item for each place keeps the published order, which is by id and not by load.
  const bool one_each = std::ranges::all_of(slots_, [](int slots) { return slots == 1; });
  const bool one_a_node = load_.size() == static_cast<std::size_t>(cluster_.num_nodes());
  if (one_each || (levels_ == EplbLevels::kHierarchical && one_a_node)) return;
  const EplbLayer before = eplb_layer(load_, cluster_, slots_, levels_);
  const EplbLayer after = eplb_layer(relabelled, cluster_, slots_, levels_);
  Groups expected = copies_of(before.layer);
  for (std::vector<ExpertId>& experts : expected) {
    for (ExpertId& e : experts) e = ExpertId(new_id[e.idx()]);
    std::ranges::sort(experts);
  }
  EXPECT_EQ(copies_of(after.layer), expected);
  EXPECT_EQ(after.second_copies_moved, before.second_copies_moved);
}

TEST_P(AnEplbLayer, IsThePublishedMapButForItsSecondCopies) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  EplbShape shape;
  shape.num_nodes = 1 + static_cast<int>(rng.below(3));
  shape.num_devices = shape.num_nodes * static_cast<int>(1 + rng.below(4));
  shape.num_groups = shape.num_nodes * static_cast<int>(1 + rng.below(12));
  const int slots =
      std::min(shape.num_groups, (shape.num_groups + shape.num_devices - 1) / shape.num_devices +
                                     static_cast<int>(rng.below(3)));
  shape.num_physical = shape.num_devices * slots;
  Loads load;
  for (int e = 0; e < shape.num_groups; ++e)
    load.push_back(1 + static_cast<std::int64_t>(rng.below(1ULL << 40)));
  Groups published(static_cast<std::size_t>(shape.num_devices));
  const std::vector<ExpertId> map = eplb_physical_to_logical(load, shape);
  for (std::size_t p = 0; p < map.size(); ++p)
    published[p / static_cast<std::size_t>(slots)].push_back(map[p]);

  const EplbLayer made = eplb_layer(load,
                                    cluster_of(std::vector<int>(static_cast<std::size_t>(shape.num_nodes),
                                                                shape.num_devices / shape.num_nodes)),
                                    std::vector<int>(static_cast<std::size_t>(shape.num_devices), slots),
                                    EplbLevels::kHierarchical);
  EXPECT_EQ(made.second_copies_moved, second_copies(published));
  if (made.second_copies_moved > 0) return;
  for (std::vector<ExpertId>& experts : published) std::ranges::sort(experts);
  EXPECT_EQ(copies_of(made.layer), published);
}

TEST_P(AnEplbLayer, SpreadsAnyHeapOfSecondCopies) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  std::vector<int> domain;
  for (int d = 0; d < cluster_.num_devices(); ++d)
    domain.push_back(levels_ == EplbLevels::kFlat ? 0 : cluster_.node_of(DeviceId(d)).value);
  // Every expert somewhere, in few kinds elsewhere.
  Groups held(slots_.size());
  std::size_t next = 0;
  for (std::size_t d = 0; d < held.size(); ++d)
    for (int slot = 0; slot < slots_[d]; ++slot, ++next)
      held[d].push_back(
          ExpertId(static_cast<std::int32_t>(next < load_.size() ? next : rng.below(load_.size() / 4 + 1))));
  const int seconds = second_copies(held);
  EXPECT_EQ(spread_second_copies(load_, slots_, domain, held), seconds);
  EXPECT_EQ(second_copies(held), 0);
  std::vector<bool> seen(load_.size(), false);
  for (std::size_t d = 0; d < held.size(); ++d) {
    EXPECT_EQ(held[d].size(), static_cast<std::size_t>(slots_[d]));
    for (const ExpertId e : held[d]) seen[e.idx()] = true;
  }
  EXPECT_THAT(seen, testing::Each(true));
}

INSTANTIATE_TEST_SUITE_P(Seeds, AnEplbLayer, testing::Range<std::uint64_t>(0, 300));

TEST(AnEplbLayerOfUnequalDevices, GivesUnequalNodesTheirShareOfExperts) {
  // Nodes of 1 and 3 devices with 4 slots each hold 4 and 12 of 16 experts.
  Loads load(16, 100);
  const EplbLayer made =
      eplb_layer(load, cluster_of({1, 3}), std::vector<int>{4, 4, 4, 4}, EplbLevels::kHierarchical);
  EXPECT_THAT(made.layer.predicted_load, testing::Each(400));
  EXPECT_THAT(made.layer.replicas_of_device, testing::Each(testing::IsEmpty()));
}

TEST(AnEplbLayerOfUnequalDevices, HoldsEverythingEverywhereWhereSlotsAllowIt) {
  const EplbLayer made =
      eplb_layer(Loads{7, 1, 2, 9}, cluster_of({2, 1}), std::vector<int>{4, 4, 4}, EplbLevels::kHierarchical);
  EXPECT_EQ(copies_of(made.layer), groups({{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}}));
  for (const double load : made.layer.predicted_load) EXPECT_NEAR(load, 19.0 / 3, 1e-12);
}

TEST(AnEplbLayerOfUnequalDevices, PlansFewerExpertsThanDevicesAndANodeWithoutOne) {
  const EplbLayer few =
      eplb_layer(Loads{8, 4}, cluster_of({2, 2, 2}), std::vector<int>{1, 1, 1, 1, 1, 1}, EplbLevels::kFlat);
  EXPECT_THAT(few.layer.predicted_load, testing::Each(2));
  // Two experts by slots 1 : 12 leave the first node none of its own; its slot takes a copy all the same.
  const EplbLayer none = eplb_layer(Loads{8, 4}, cluster_of({1, 6}), std::vector<int>{1, 2, 2, 2, 2, 2, 2},
                                    EplbLevels::kHierarchical);
  EXPECT_EQ(copies_of(none.layer).front(), groups({{0}}).front());
}

}  // namespace
}  // namespace grace
