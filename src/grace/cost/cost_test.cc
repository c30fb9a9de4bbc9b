#include "grace/cost/cost.h"

#include <gmock/gmock.h>

#include <set>
#include <tuple>

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

// The brute-force twin: writes down every message, entry by entry, and weighs it.
LayerTraffic weigh(const Batch& batch, const Cluster& cluster, Dispatch dispatch,
                   std::int64_t bytes_per_vector) {
  LayerTraffic traffic;
  traffic.load.assign(static_cast<std::size_t>(cluster.num_devices()), 0);
  for (std::size_t s = 0; s < batch.device_of_choice_of_source.size(); ++s) {
    const std::vector<std::int32_t>& devices = batch.device_of_choice_of_source[s];
    std::set<std::tuple<std::int32_t, std::size_t, std::size_t>>
        vectors;  // device, token, choice (0 when shared)
    for (std::size_t i = 0; i < devices.size(); ++i) {
      const std::int32_t d = devices[i];
      if (d < 0) continue;
      ++traffic.load[static_cast<std::size_t>(d)];
      if (d == static_cast<std::int32_t>(s)) continue;
      const bool near =
          cluster.node_of(DeviceId(d)) == cluster.node_of(DeviceId(static_cast<std::int32_t>(s)));
      std::int64_t& header = near ? traffic.dispatch.intra_node_header : traffic.dispatch.cross_node_header;
      std::int64_t& payload =
          near ? traffic.dispatch.intra_node_payload : traffic.dispatch.cross_node_payload;
      header += 4;
      (near ? traffic.combine.intra_node_payload : traffic.combine.cross_node_payload) += bytes_per_vector;
      const std::size_t token = i / static_cast<std::size_t>(batch.top_k);
      if (!vectors.insert({d, token, dispatch == Dispatch::kFlat ? i : 0}).second) continue;
      header += 8;
      payload += bytes_per_vector;
    }
  }
  return traffic;
}

class Traffic : public testing::TestWithParam<std::uint64_t> {};

TEST_P(Traffic, EqualsEveryMessageWrittenDown) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  const std::vector<std::vector<std::size_t>> shapes{{1}, {2, 2}, {4, 4}, {1, 3, 2}, {3}, {1, 1}};
  const Cluster cluster = cluster_of(shapes[rng.below(shapes.size())]);
  const Batch batch = random_batch(rng, cluster.num_devices());
  for (const Dispatch dispatch : {Dispatch::kFlat, Dispatch::kPerDevice}) {
    std::vector<SendCounts> sends;
    for (const auto& devices : batch.device_of_choice_of_source)
      sends.push_back(count_sends(devices, batch.top_k, dispatch, cluster.num_devices()));
    const LayerTraffic got = traffic_of(sends, cluster, 512);
    const LayerTraffic want = weigh(batch, cluster, dispatch, 512);
    EXPECT_EQ(got.dispatch, want.dispatch);
    EXPECT_EQ(got.combine, want.combine);
    EXPECT_EQ(got.load, want.load);
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, Traffic, testing::Range<std::uint64_t>(0, 200));

TEST(SendCountsOfABatch, ShareAVectorPerDeviceOnlyWhenAsked) {
  const std::vector<std::int32_t> devices{1, 1, 0, 1, 2, kNoDevice.value};  // two tokens of three
  const SendCounts flat = count_sends(devices, 3, Dispatch::kFlat, 3);
  EXPECT_THAT(flat.vectors, testing::ElementsAre(1, 3, 1));
  EXPECT_THAT(flat.assignments, testing::ElementsAre(1, 3, 1));
  const SendCounts shared = count_sends(devices, 3, Dispatch::kPerDevice, 3);
  EXPECT_THAT(shared.vectors, testing::ElementsAre(1, 2, 1));
  EXPECT_THAT(shared.assignments, testing::ElementsAre(1, 3, 1));
}

TEST(SendCountsOfABatch, AreZeroWithoutTokens) {
  const SendCounts none = count_sends({}, 8, Dispatch::kPerDevice, 2);
  EXPECT_THAT(none.vectors, testing::ElementsAre(0, 0));
  EXPECT_THAT(none.assignments, testing::ElementsAre(0, 0));
}

TEST(Traffic, OfOneDeviceIsNothing) {
  const std::vector<std::int32_t> devices(64, 0);
  const std::vector<SendCounts> sends{count_sends(devices, 8, Dispatch::kFlat, 1)};
  const LayerTraffic traffic = traffic_of(sends, cluster_of({1}), 4096);
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
  for (const Dispatch dispatch : {Dispatch::kFlat, Dispatch::kPerDevice})
    EXPECT_EQ(parse_dispatch(name_of(dispatch)).value(), dispatch);
  EXPECT_EQ(parse_dispatch("flat").value(), Dispatch::kFlat);
  EXPECT_EQ(parse_dispatch("per_device").value(), Dispatch::kPerDevice);
  const auto unknown = parse_dispatch("Flat");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().message, "dispatch `Flat` is none of flat, per_device, two_stage");
}

}  // namespace
}  // namespace grace
