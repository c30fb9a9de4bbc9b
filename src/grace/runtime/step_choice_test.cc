#include "grace/runtime/step_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "grace/base/rng.h"
#include "grace/runtime/test_plans.h"

namespace grace {
namespace {

// By sets, token by token.
FanOut slow_fan_out(const Cluster& cluster, DeviceId source, std::span<const std::int32_t> devices, int top) {
  FanOut sum;
  for (std::size_t first = 0; first < devices.size(); first += static_cast<std::size_t>(top)) {
    std::set<std::int32_t> used, nodes;
    sum.tokens += 1;
    for (const std::int32_t device : devices.subspan(first, static_cast<std::size_t>(top))) {
      if (device == kNoDevice.value || device == source.value) continue;
      used.insert(device);
      const NodeId node = cluster.node_of(DeviceId(device));
      const bool away = node != cluster.node_of(source);
      if (away) nodes.insert(node.value);
      (away ? sum.out : sum.in) += 1;
      if (away && cluster.entry_of(node, source).value != device) sum.passed += 1;
    }
    sum.nodes += static_cast<double>(nodes.size());
    for (const std::int32_t device : used) {
      const NodeId node = cluster.node_of(DeviceId(device));
      const bool away = node != cluster.node_of(source);
      (away ? sum.devices_out : sum.devices_in) += 1;
      if (!away || cluster.entry_of(node, source).value != device) sum.forwards += 1;
    }
  }
  return sum;
}

std::vector<double> numbers(const FanOut& of) {
  return {of.tokens, of.nodes, of.devices_out, of.devices_in, of.forwards, of.out, of.in, of.passed};
}

TEST(AFanOut, CountsWhereATokensExpertsAre) {
  for (const char* spec : {"1x1", "1x4", "3x1", "2x2", "2x4", "1+3"}) {
    const Cluster cluster = cluster_of(spec);
    const int top = 4;
    Rng rng(5);
    FanOut all;
    for (int d = 0; d < cluster.num_devices(); ++d) {
      std::vector<std::int32_t> devices;
      for (int i = 0; i < 200 * top; ++i)
        devices.push_back(rng.below(9) == 0 ? kNoDevice.value
                                            : static_cast<std::int32_t>(rng.below(
                                                  static_cast<std::uint64_t>(cluster.num_devices()))));
      const FanOut seen = fan_out_of(cluster, DeviceId(d), devices, top);
      EXPECT_EQ(numbers(seen), numbers(slow_fan_out(cluster, DeviceId(d), devices, top))) << spec;
      for (std::size_t i = 0; i < devices.size(); ++i)
        devices[i] = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(cluster.num_devices())));
      all += fan_out_of(cluster, DeviceId(d), devices, top);
    }
    // Choices drawn evenly come near what is expected of them.
    const std::vector<double> got = numbers(all), expected = numbers(even_fan_out(cluster, top));
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i] / all.tokens, expected[i] / expected[0], 0.2) << spec << ", number " << i;
  }
}

TEST(AnExchange, TakesWhatItsLinksAndLatenciesSay) {
  Cluster cluster = cluster_of("2x2");
  cluster.between_nodes = {1e6, 1e-3};
  cluster.between_devices = {1e7, 1e-4};
  const FanOut of{.tokens = 10,
                  .nodes = 5,
                  .devices_out = 8,
                  .devices_in = 4,
                  .forwards = 7,
                  .out = 20,
                  .in = 6,
                  .passed = 9};
  const auto seconds = [&](Dispatch dispatch, Combine combine) {
    return exchange_seconds(cluster, of, 100, dispatch, combine, 1000);
  };
  // 100 tokens are 10 times the 10 that were seen; two devices share a node's link.
  EXPECT_NEAR(seconds(Dispatch::kPerDevice, Combine::kReduced), 2e-3 + 10e3 * 2 * 16 / 1e6 + 10e3 * 8 / 1e7,
              1e-12);
  EXPECT_NEAR(seconds(Dispatch::kTwoStage, Combine::kReduced), 2.2e-3 + 10e3 * 2 * 10 / 1e6 + 10e3 * 14 / 1e7,
              1e-12);
  EXPECT_NEAR(seconds(Dispatch::kPerDevice, Combine::kExact), 2e-3 + 10e3 * 2 * 28 / 1e6 + 10e3 * 10 / 1e7,
              1e-12);
  EXPECT_NEAR(seconds(Dispatch::kTwoStage, Combine::kExact), 2.2e-3 + 10e3 * 2 * 25 / 1e6 + 10e3 * 22 / 1e7,
              1e-12);
}

}  // namespace
}  // namespace grace
