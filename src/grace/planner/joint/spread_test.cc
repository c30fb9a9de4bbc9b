#include "grace/planner/joint/spread.h"

#include <gmock/gmock.h>

#include <numeric>

#include "grace/base/rng.h"

namespace grace::joint {
namespace {

using testing::ElementsAre;

TEST(ABudgetOverLayers, GoesWhereTheNextSlotIsWorthMost) {
  const std::vector<std::vector<double>> value{{10, 9, 8.5}, {10, 6, 5.9}, {10, 10, 10}};
  EXPECT_THAT(spread_slots(value, 4, 12), ElementsAre(4, 4, 4));
  EXPECT_THAT(spread_slots(value, 4, 13), ElementsAre(4, 5, 4));
  EXPECT_THAT(spread_slots(value, 4, 15), ElementsAre(6, 5, 4));
  EXPECT_THAT(spread_slots(value, 4, 40), ElementsAre(6, 6, 4));  // what is worth nothing is not spent
}

TEST(ABudgetOverLayers, TakesSeveralSlotsAtOnceWhereOneAloneIsWorthNothing) {
  const std::vector<std::vector<double>> value{{10, 9.5, 9.2}, {10, 10, 4}};
  EXPECT_THAT(spread_slots(value, 1, 4), ElementsAre(1, 3));
  EXPECT_THAT(spread_slots(value, 1, 3), ElementsAre(2, 1));
}

class ABudget : public testing::TestWithParam<std::uint64_t> {};

// On convex values greed is best: all ways to spread are tried.
TEST_P(ABudget, IsSpentAsWellAsCanBe) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  std::vector<std::vector<double>> value(3);
  for (std::vector<double>& layer : value) {
    double fall = 1 + static_cast<double>(rng.below(100));
    layer.push_back(1000);
    for (int i = 0; i < 4; ++i) {
      layer.push_back(layer.back() - fall);
      fall *= rng.uniform();
    }
  }
  for (int extra = 0; extra <= 12; ++extra) {
    const std::vector<int> slots = spread_slots(value, 2, 6 + extra);
    double got = 0, best = 1e9;
    for (std::size_t m = 0; m < 3; ++m) got += value[m][static_cast<std::size_t>(slots[m] - 2)];
    for (std::size_t a = 0; a < 5; ++a)
      for (std::size_t b = 0; b < 5; ++b)
        for (std::size_t c = 0; c < 5; ++c)
          if (a + b + c <= static_cast<std::size_t>(extra))
            best = std::min(best, value[0][a] + value[1][b] + value[2][c]);
    EXPECT_LE(std::accumulate(slots.begin(), slots.end(), 0), 6 + extra);
    EXPECT_NEAR(got, best, 1e-9) << extra;
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, ABudget, testing::Range<std::uint64_t>(0, 20));

}  // namespace
}  // namespace grace::joint
