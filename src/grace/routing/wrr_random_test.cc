#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "grace/routing/routing.h"

namespace grace {
namespace {

Cluster one_node(std::size_t num_devices) {
  Cluster cluster;
  cluster.devices_of_node.emplace_back(num_devices);
  return cluster;
}

// Expert 0 on every device, expert 1 on device 1 alone, expert 2 on the last two.
LayerPlan three_experts(std::vector<double> load) {
  const std::size_t devices = load.size();
  LayerPlan layer{std::vector<std::vector<ExpertId>>(devices), std::vector<std::vector<ExpertId>>(devices),
                  std::move(load)};
  layer.primaries_of_device[0] = {ExpertId(0)};
  layer.primaries_of_device[1] = {ExpertId(1)};
  layer.primaries_of_device[devices - 1] = {ExpertId(2)};
  for (std::size_t d = 1; d < devices; ++d) layer.replicas_of_device[d].push_back(ExpertId(0));
  layer.replicas_of_device[devices - 2].push_back(ExpertId(2));
  return layer;
}

std::vector<std::int32_t> draws(const LayerPlan& layer, std::vector<std::uint16_t> choices, int source) {
  const Cluster cluster = one_node(layer.predicted_load.size());
  auto router = make_router("wrr_random", layer, 3, cluster, DeviceId(source));
  std::vector<std::int32_t> devices(choices.size(), -7);
  router.value()->route(choices, 1, devices);
  return devices;
}

// A share of n draws with probability p is normal around p with variance p (1 - p) / n: four sigma.
void expect_share(const std::vector<std::int32_t>& devices, std::int32_t device, double probability) {
  const auto n = static_cast<double>(devices.size());
  const double share = static_cast<double>(std::ranges::count(devices, device)) / n;
  EXPECT_NEAR(share, probability, 4 * std::sqrt(probability * (1 - probability) / n)) << "device " << device;
}

class ARandomDraw : public testing::TestWithParam<int> {};

TEST_P(ARandomDraw, FallsOnEachCopyByTheInverseOfItsPredictedLoad) {
  const LayerPlan layer = three_experts({100, 250, 400, 1000});
  const double sum = 1.0 / 100 + 1.0 / 250 + 1.0 / 400 + 1.0 / 1000;
  const auto of_all = draws(layer, std::vector<std::uint16_t>(200'000, 0), GetParam());
  for (const std::int32_t d : {0, 1, 2, 3})
    expect_share(of_all, d, 1 / layer.predicted_load[static_cast<std::size_t>(d)] / sum);
  const auto of_two = draws(layer, std::vector<std::uint16_t>(200'000, 2), GetParam());
  expect_share(of_two, 2, 1000.0 / 1400);
  expect_share(of_two, 3, 400.0 / 1400);
}

TEST_P(ARandomDraw, IsEvenWhereNothingIsPredicted) {
  const auto devices = draws(three_experts({0, 0, 0, 0}), std::vector<std::uint16_t>(200'000, 0), GetParam());
  for (const std::int32_t d : {0, 1, 2, 3}) expect_share(devices, d, 0.25);
}

TEST_P(ARandomDraw, IsIndependentOfTheDrawBefore) {
  const auto devices = draws(three_experts({1, 1, 1, 1}), std::vector<std::uint16_t>(200'000, 0), GetParam());
  std::vector<std::int32_t> pairs;
  for (std::size_t i = 1; i < devices.size(); ++i) pairs.push_back(devices[i - 1] * 4 + devices[i]);
  for (std::int32_t pair = 0; pair < 16; ++pair) expect_share(pairs, pair, 1.0 / 16);
}

INSTANTIATE_TEST_SUITE_P(Sources, ARandomDraw, testing::Range(0, 4));

TEST(ARandomDraw, RepeatsForTheSameSourceAndDiffersForAnother) {
  const LayerPlan layer = three_experts({3, 1, 2, 5});
  const std::vector<std::uint16_t> choices(500, 0);
  EXPECT_EQ(draws(layer, choices, 1), draws(layer, choices, 1));
  EXPECT_NE(draws(layer, choices, 1), draws(layer, choices, 2));
}

TEST(ARandomDraw, IsOnlyMadeWhereThereIsAChoice) {
  EXPECT_THAT(draws(three_experts({3, 1, 2, 5}), {1, kNotChosen, 1}, 3), testing::ElementsAre(1, -1, 1));
}

TEST(ARandomDraw, GoesOnFromCallToCall) {
  const LayerPlan layer = three_experts({3, 1, 2, 5});
  const Cluster cluster = one_node(4);
  const std::vector<std::uint16_t> choices(300, 0);
  const auto at_once = draws(layer, choices, 0);
  auto router = make_router("wrr_random", layer, 3, cluster, DeviceId(0));
  std::vector<std::int32_t> in_parts(choices.size());
  for (std::size_t at = 0; at < choices.size(); at += 100)
    router.value()->route(std::span(choices).subspan(at, 100), 1, std::span(in_parts).subspan(at, 100));
  EXPECT_EQ(at_once, in_parts);
}

}  // namespace
}  // namespace grace
