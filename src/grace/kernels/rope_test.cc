#include "grace/kernels/rope.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numbers>

#include "grace/kernels/test_values.h"

namespace grace::kernels {
namespace {

Rotations turned_to(std::span<const std::int32_t> positions, const RotaryTable& table) {
  Rotations rotations;
  turn_to(positions, table, rotations);
  return rotations;
}

TEST(Rope, EqualsTheReferenceUpToTheRoundingOfItsAngle) {
  Rng rng(29);
  const std::vector<std::int32_t> positions{0, 1, 5, 100, 4095};
  for (const int dim : {16, 22}) {
    for (const bool interleaved : {false, true}) {
      RotaryTable table = plain_rotary(16, 10000);
      table.interleaved = interleaved;
      table.amplitude = 1.25F;
      const std::size_t row = 3 * static_cast<std::size_t>(dim);
      auto x = random_values(rng, positions.size() * row);
      auto expected = x;
      reference::rope(expected, 3, dim, positions, table);
      for (const int threads : {1, 3}) {
        ThreadPool pool(threads);
        auto y = x;
        rope(y, 3, dim, turned_to(positions, table), pool);
        expect_close(std::span(y).first(3 * row), std::span(expected).first(3 * row), 6e-6);
        expect_close(y, expected, 5 * kUlp * 4095 * 2);
      }
    }
  }
}

TEST(Rope, LeavesPositionZeroAloneAndWhatIsBeforeTheRotaryPart) {
  Rng rng(31);
  ThreadPool pool(1);
  const auto before = random_values(rng, 2 * 8);
  auto x = before;
  rope(x, 2, 8, turned_to(std::vector<std::int32_t>{0}, plain_rotary(8, 10000)), pool);
  EXPECT_EQ(x, before);
  rope(x, 2, 8, turned_to(std::vector<std::int32_t>{7}, plain_rotary(2, 10000)), pool);
  for (const std::size_t head : {0UL, 8UL}) {
    EXPECT_TRUE(std::equal(x.begin() + static_cast<std::ptrdiff_t>(head),
                           x.begin() + static_cast<std::ptrdiff_t>(head) + 6,
                           before.begin() + static_cast<std::ptrdiff_t>(head)));
    EXPECT_NE(x[head + 6], before[head + 6]);
  }
}

TEST(Rope, TurnsTheSamePairsWhicheverWayTheyLie) {
  ThreadPool pool(1);
  const std::vector<std::int32_t> positions{9};
  std::vector<float> halves{1, 2, 3, 4}, pairs{1, 3, 2, 4};
  RotaryTable table = plain_rotary(4, 100);
  rope(halves, 1, 4, turned_to(positions, table), pool);
  table.interleaved = true;
  rope(pairs, 1, 4, turned_to(positions, table), pool);
  EXPECT_THAT(pairs, testing::ElementsAre(halves[0], halves[2], halves[1], halves[3]));
}

TEST(APlainTable, HasThetaToTheMinusTwoIthOfItsDimension) {
  EXPECT_THAT(plain_rotary(4, 10000).frequencies, testing::ElementsAre(1.0F, testing::FloatEq(0.01F)));
}

// DeepSeek-V2-Lite's: dimensions 0 to 10 as they were, from 23 on slowed down by 40.
TEST(AYarnTable, LeavesFastDimensionsAloneAndSlowsTheSlowOnesDown) {
  const YarnScaling scaling{.factor = 40, .original_positions = 4096};
  const auto yarn = yarn_rotary(64, 10000, scaling).frequencies;
  const auto plain = plain_rotary(64, 10000).frequencies;
  for (std::size_t i = 0; i < 32; ++i) {
    SCOPED_TRACE(i);
    if (i <= 10) {
      EXPECT_FLOAT_EQ(yarn[i], plain[i]);
    } else if (i >= 23) {
      EXPECT_FLOAT_EQ(yarn[i], plain[i] / 40);
    } else {
      const double ramp = (static_cast<double>(i) - 10) / 13;
      EXPECT_NEAR(yarn[i] / plain[i], 1 - ramp + ramp / 40, 1e-6);
    }
  }
}

TEST(AYarnTable, MayBeginAndEndBetweenDimensions) {
  const YarnScaling scaling{.factor = 4, .original_positions = 64, .beta_fast = 8, .truncate = false};
  const auto yarn = yarn_rotary(16, 1000, scaling).frequencies;
  const auto plain = plain_rotary(16, 1000).frequencies;
  const auto dimension = [&](double turns) {
    return 16 * std::log(64 / (turns * 2 * std::numbers::pi)) / (2 * std::log(1000.0));
  };
  const double low = dimension(8), high = dimension(1);
  for (std::size_t i = 0; i < 8; ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    EXPECT_NEAR(yarn[i] / plain[i], 1 - ramp + ramp / 4, 1e-6) << i;
  }
}

}  // namespace
}  // namespace grace::kernels
