#include "grace/cost/cost.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <string>

#include "grace/base/rng.h"

namespace grace {
namespace {

Cluster cluster_of(std::vector<std::size_t> devices_per_node) {
  Cluster cluster;
  for (const std::size_t devices : devices_per_node) cluster.devices_of_node.emplace_back(devices);
  return cluster;
}

struct Batch {
  std::vector<std::vector<std::int32_t>> device_of_choice_of_source;  // [D][T, K]
  int top_k = 0;
};

Batch random_batch(Rng& rng, int num_devices) {
  Batch batch;
  batch.top_k = 1 + static_cast<int>(rng.below(8));
  for (int s = 0; s < num_devices; ++s) {
    std::vector<std::int32_t> devices(rng.below(40) * static_cast<std::size_t>(batch.top_k));
    for (std::int32_t& d : devices)
      d = rng.below(10) == 0 ? kNoDevice.value
                             : static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(num_devices)));
    batch.device_of_choice_of_source.push_back(devices);
  }
  return batch;
}

// One message entry after the other, weighed: a twin that knows nothing of counts.
class Scales {
 public:
  Scales(const Cluster& cluster, Combine combine, std::int64_t bytes_per_vector)
      : cluster_(cluster), combine_(combine), bytes_per_vector_(bytes_per_vector) {}

  // A vector with its assignments, and what comes back for it.
  void weigh(std::int32_t from, std::int32_t to, std::int64_t assignments) {
    if (from == to) return;
    const bool near = cluster_.node_of(DeviceId(from)) == cluster_.node_of(DeviceId(to));
    LevelBytes bytes;
    (near ? bytes.intra_node_header : bytes.cross_node_header) =
        8 + assignments * (combine_ == Combine::kExact ? 4 : 8);
    (near ? bytes.intra_node_payload : bytes.cross_node_payload) = bytes_per_vector_;
    traffic.dispatch += bytes;
    LevelBytes back;
    (near ? back.intra_node_payload : back.cross_node_payload) =
        bytes_per_vector_ * (combine_ == Combine::kExact ? assignments : 1);
    traffic.combine += back;
  }

  LayerTraffic traffic;

 private:
  const Cluster& cluster_;
  Combine combine_;
  std::int64_t bytes_per_vector_;
};

LayerTraffic weigh(const Batch& batch, const Cluster& cluster, Dispatch dispatch, Combine combine) {
  Scales scales(cluster, combine, 512);
  scales.traffic.load.assign(static_cast<std::size_t>(cluster.num_devices()), 0);
  std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> of_pair;
  for (std::int32_t s = 0; s < cluster.num_devices(); ++s) {
    const std::vector<std::int32_t>& devices = batch.device_of_choice_of_source[static_cast<std::size_t>(s)];
    for (std::size_t token = 0; token < devices.size(); token += static_cast<std::size_t>(batch.top_k)) {
      std::map<std::int32_t, std::int64_t> of_device;
      std::map<std::int32_t, std::int64_t> of_node;
      for (std::size_t k = 0; k < static_cast<std::size_t>(batch.top_k); ++k) {
        const std::int32_t d = devices[token + k];
        if (d < 0) continue;
        ++scales.traffic.load[static_cast<std::size_t>(d)];
        ++of_device[d];
        ++of_node[cluster.node_of(DeviceId(d)).value];
        if (dispatch == Dispatch::kFlat) scales.weigh(s, d, 1);
        if (dispatch == Dispatch::kPadded) ++of_pair[{s, d}];
      }
      if (dispatch == Dispatch::kAllGather)
        for (std::int32_t d = 0; d < cluster.num_devices(); ++d) scales.weigh(s, d, of_device[d]);
      if (dispatch != Dispatch::kPerDevice && dispatch != Dispatch::kTwoStage) continue;
      const auto entry = [&](std::int32_t node) {
        if (dispatch == Dispatch::kPerDevice || node == cluster.node_of(DeviceId(s)).value) return s;
        int local = 0;
        for (std::int32_t d = s; d > 0 && cluster.node_of(DeviceId(d - 1)) == cluster.node_of(DeviceId(s));
             --d)
          ++local;
        std::int32_t first = 0;
        while (cluster.node_of(DeviceId(first)).value != node) ++first;
        return first + local % cluster.devices_in(NodeId(node));
      };
      for (const auto& [node, assignments] : of_node)
        if (dispatch == Dispatch::kTwoStage) scales.weigh(s, entry(node), assignments);
      for (const auto& [device, assignments] : of_device)
        scales.weigh(entry(cluster.node_of(DeviceId(device)).value), device, assignments);
    }
  }
  std::int64_t longest = 0;
  for (const auto& [pair, vectors] : of_pair)
    if (pair.first != pair.second) longest = std::max(longest, vectors);
  for (std::int32_t from = 0; from < cluster.num_devices(); ++from)
    for (std::int32_t to = 0; to < cluster.num_devices(); ++to)
      for (std::int64_t i = 0; i < longest; ++i) scales.weigh(from, to, 1);
  return scales.traffic;
}

HopCounts count(const Batch& batch, const Cluster& cluster, Dispatch dispatch) {
  HopCounter counter(cluster, dispatch);
  for (std::int32_t s = 0; s < cluster.num_devices(); ++s)
    counter.add(DeviceId(s), batch.device_of_choice_of_source[static_cast<std::size_t>(s)], batch.top_k);
  return counter.counts();
}

class Traffic : public testing::TestWithParam<std::uint64_t> {};

TEST_P(Traffic, EqualsEveryMessageWrittenDown) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  const std::vector<std::vector<std::size_t>> shapes{{1}, {2, 2}, {4, 4}, {1, 3, 2}, {3}, {1, 1}};
  const Cluster cluster = cluster_of(shapes[rng.below(shapes.size())]);
  const Batch batch = random_batch(rng, cluster.num_devices());
  for (const Dispatch dispatch : {Dispatch::kFlat, Dispatch::kPerDevice, Dispatch::kTwoStage,
                                  Dispatch::kPadded, Dispatch::kAllGather}) {
    const HopCounts counts = count(batch, cluster, dispatch);
    for (const Combine combine : {Combine::kExact, Combine::kReduced}) {
      SCOPED_TRACE(std::string(name_of(dispatch)) + ", " + std::string(name_of(combine)));
      const LayerTraffic got = traffic_of(counts, cluster, combine, 512);
      const LayerTraffic want = weigh(batch, cluster, dispatch, combine);
      EXPECT_EQ(got.dispatch, want.dispatch);
      EXPECT_EQ(got.combine, want.combine);
      EXPECT_EQ(got.load, want.load);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, Traffic, testing::Range<std::uint64_t>(0, 200));

TEST(CountsOfABatch, ShareAVectorPerDeviceOnlyWhenAsked) {
  const Cluster cluster = cluster_of({3});
  const Batch batch{{{1, 1, 0, 1, 2, kNoDevice.value}, {}, {}}, 3};  // two tokens of device 0
  const HopCounts flat = count(batch, cluster, Dispatch::kFlat);
  EXPECT_THAT(flat.vectors, testing::ElementsAre(0, 3, 1, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(flat.assignments, testing::ElementsAre(0, 3, 1, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(flat.load, testing::ElementsAre(1, 3, 1));
  const HopCounts shared = count(batch, cluster, Dispatch::kPerDevice);
  EXPECT_THAT(shared.vectors, testing::ElementsAre(0, 2, 1, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(shared.assignments, testing::ElementsAre(0, 3, 1, 0, 0, 0, 0, 0, 0));
}

TEST(CountsOfABatch, EnterANodeOnceAndGoOnFromThere) {
  const Cluster cluster = cluster_of({2, 2});
  const Batch batch{{{}, {2, 3, 3, 0}, {}, {}}, 4};  // device 1 enters node 1 by device 3
  const HopCounts counts = count(batch, cluster, Dispatch::kTwoStage);
  std::vector<std::int64_t> vectors(16, 0), assignments(16, 0);
  vectors[1 * 4 + 3] = vectors[3 * 4 + 2] = vectors[1 * 4 + 0] = 1;
  assignments[1 * 4 + 3] = 3;
  assignments[3 * 4 + 2] = assignments[1 * 4 + 0] = 1;
  EXPECT_EQ(counts.vectors, vectors);
  EXPECT_EQ(counts.assignments, assignments);
}

TEST(Traffic, OfOneDeviceIsNothing) {
  const Cluster cluster = cluster_of({1});
  const Batch batch{{std::vector<std::int32_t>(64, 0)}, 8};
  const LayerTraffic traffic =
      traffic_of(count(batch, cluster, Dispatch::kFlat), cluster, Combine::kExact, 4096);
  EXPECT_EQ(traffic.dispatch, LevelBytes{});
  EXPECT_EQ(traffic.combine, LevelBytes{});
  EXPECT_THAT(traffic.load, testing::ElementsAre(64));
}

TEST(LevelBytesSum, AddsEachFigure) {
  LevelBytes sum{1, 2, 3, 4};
  sum += LevelBytes{10, 20, 30, 40};
  EXPECT_EQ(sum, (LevelBytes{11, 22, 33, 44}));
}

TEST(Imbalance, IsOneAndZeroWithoutLoad) {
  EXPECT_EQ(max_over_mean({}), 1.0);
  EXPECT_EQ(standard_deviation({}), 0.0);
  const std::vector<std::int64_t> zero(4, 0);
  EXPECT_EQ(max_over_mean(zero), 1.0);
  EXPECT_EQ(standard_deviation(zero), 0.0);
}

TEST(Imbalance, IsMeasuredOverAllDevices) {
  const std::vector<std::int64_t> load{2, 4, 4, 4, 5, 5, 7, 9};  // mean 5, variance 4
  EXPECT_DOUBLE_EQ(max_over_mean(load), 9.0 / 5.0);
  EXPECT_DOUBLE_EQ(standard_deviation(load), 2.0);
}

TEST(ADispatchName, ReadsBackAndIsRefusedWhenUnknown) {
  for (const Dispatch dispatch :
       {Dispatch::kFlat, Dispatch::kPerDevice, Dispatch::kTwoStage, Dispatch::kPadded, Dispatch::kAllGather})
    EXPECT_EQ(parse_dispatch(name_of(dispatch)).value(), dispatch);
  EXPECT_EQ(parse_dispatch("flat").value(), Dispatch::kFlat);
  EXPECT_EQ(parse_dispatch("per_device").value(), Dispatch::kPerDevice);
  const auto unknown = parse_dispatch("Flat");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().message,
            "dispatch `Flat` is none of flat, per_device, two_stage, padded, allgather");
}

}  // namespace
}  // namespace grace
