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

TEST(AnEplbMap, IsThePublishedOneOfThePublishedExample) {
  const EplbShape shape{.num_physical = 16, .num_groups = 4, .num_nodes = 2, .num_devices = 8};
  EXPECT_THAT(ids(eplb_physical_to_logical(Loads{90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86}, shape)),
              testing::ElementsAre(5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1));
  EXPECT_THAT(
      ids(eplb_physical_to_logical(Loads{20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27}, shape)),
      testing::ElementsAre(7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1));
}

// What the published code is known to do, faults included.
TEST(AnEplbMap, KeepsThePublishedHabits) {
  const EplbShape shape{.num_physical = 8, .num_devices = 4};
  EXPECT_THAT(ids(eplb_physical_to_logical(Loads{0, 0, 0, 0}, shape)),
              testing::ElementsAre(0, 1, 2, 3, 0, 0, 0, 0));
  EXPECT_THAT(ids(eplb_physical_to_logical(Loads{1000, 0, 0, 0}, shape)),
              testing::ElementsAre(0, 0, 0, 1, 0, 2, 0, 3));
  EXPECT_THAT(ids(eplb_physical_to_logical(Loads{1, 9, 4, 7}, {.num_physical = 4, .num_devices = 4})),
              testing::ElementsAre(0, 1, 2, 3));
}

TEST(AnEplbMap, GivesTiesToTheLowerIndex) {
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

}  // namespace
}  // namespace grace
