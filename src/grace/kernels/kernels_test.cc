#include "grace/kernels/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "grace/base/rng.h"
#include "grace/kernels/test_values.h"

namespace grace::kernels {
namespace {

TEST(RmsNorm, EqualsTheReferenceAlsoInPlace) {
  Rng rng(23);
  for (const std::size_t n : {1UL, 7UL, 64UL, 101UL}) {
    auto x = random_values(rng, 5 * n, 3);
    const auto scale = random_values(rng, n);
    std::vector<float> expected(x.size(), kPoison);
    reference::rms_norm(x, scale, 1e-5, expected);
    std::vector<float> y(x.size(), kPoison);
    rms_norm(x, scale, 1e-5, y);
    expect_close(y, expected, 1e-5);
    rms_norm(x, scale, 1e-5, x);
    EXPECT_TRUE(same_bits(x, y));
  }
}

TEST(Rope, EqualsTheReferenceUpToTheRoundingOfItsAngle) {
  Rng rng(29);
  const std::vector<std::int32_t> positions{0, 1, 5, 100, 4095};
  auto x = random_values(rng, positions.size() * 3 * 16);
  auto expected = x;
  reference::rope(expected, 3, 16, positions, 10000);
  rope(x, 3, 16, positions, 10000);
  expect_close(std::span(x).first(3 * 3 * 16), std::span(expected).first(3 * 3 * 16), 4e-6);
  expect_close(x, expected, 4 * kUlp * 4095 * 2);
}

TEST(Rope, LeavesPositionZeroAlone) {
  Rng rng(31);
  const auto before = random_values(rng, 2 * 8);
  auto x = before;
  rope(x, 2, 8, std::vector<std::int32_t>{0}, 10000);
  EXPECT_EQ(x, before);
}

TEST(AGate, WeighsByTheSoftmaxOverAllExpertsUnlessAskedToNormalise) {
  const std::vector<float> logits{2, 1, 0, -1};
  std::vector<std::uint16_t> ids(2);
  std::vector<float> weights(2);
  gate(logits, 4, 2, false, ids, weights);
  EXPECT_THAT(ids, testing::ElementsAre(0, 1));
  EXPECT_NEAR(weights[0], 0.6439, 5e-5);
  EXPECT_NEAR(weights[1], 0.2369, 5e-5);
  gate(logits, 4, 2, true, ids, weights);
  EXPECT_NEAR(weights[0], 0.7311, 5e-5);
  EXPECT_NEAR(weights[1], 0.2689, 5e-5);
}

TEST(AGate, GivesTiesToTheLowerIdAndOrdersByProbability) {
  const std::vector<float> logits{0, 3, 3, 1, 3, 0, 0, 0, 0, 0};
  std::vector<std::uint16_t> ids(6);
  std::vector<float> weights(6);
  gate(logits, 5, 3, false, ids, weights);
  EXPECT_THAT(ids, testing::ElementsAre(1, 2, 4, 0, 1, 2));
}

TEST(AGate, EqualsTheReferenceOnRandomLogits) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const int experts = 2 + static_cast<int>(rng.below(70));
    const int top = 1 + static_cast<int>(rng.below(static_cast<std::uint64_t>(experts)));
    const auto logits = random_values(rng, static_cast<std::size_t>(9 * experts), 4);
    for (const bool normalise : {false, true}) {
      std::vector<std::uint16_t> ids(static_cast<std::size_t>(9 * top));
      std::vector<std::uint16_t> expected_ids(ids.size());
      std::vector<float> weights(ids.size());
      std::vector<float> expected(ids.size());
      gate(logits, experts, top, normalise, ids, weights);
      reference::gate(logits, experts, top, normalise, expected_ids, expected);
      EXPECT_EQ(ids, expected_ids);
      expect_close(weights, expected, 2e-6);
    }
  }
}

// The best expert by plain search, then the best of those it allows.
TEST(AGateHeldToPartners, EqualsAPlainSearch) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const std::size_t experts = 2 + rng.below(40), top = 1 + rng.below(experts), tokens = 9;
    const std::size_t partners = top - 1 + rng.below(experts - top + 1);
    std::vector<char> allowed(experts * experts, 0);
    for (std::size_t e = 0; e < experts; ++e)
      for (std::size_t left = partners; left > 0;)
        if (const std::size_t other = rng.below(experts); other != e && allowed[e * experts + other] == 0) {
          allowed[e * experts + other] = 1;
          --left;
        }
    const auto logits = random_values(rng, tokens * experts, 4);
    std::vector<std::uint16_t> ids(tokens * top);
    std::vector<float> weights(ids.size());
    const bool normalise = seed % 2 == 0;
    gate_among(logits, static_cast<int>(experts), static_cast<int>(top), normalise, allowed, ids, weights);
    for (std::size_t t = 0; t < tokens; ++t) {
      std::vector<double> left(experts);
      double all = 0, kept = 0;
      for (std::size_t e = 0; e < experts; ++e)
        all += left[e] = std::exp(static_cast<double>(logits[t * experts + e]));
      std::vector<double> want;
      for (std::size_t k = 0; k < top; ++k) {
        const auto best = static_cast<std::size_t>(std::ranges::max_element(left) - left.begin());
        ASSERT_EQ(ids[t * top + k], best);
        want.push_back(left[best] / all);
        kept += want.back();
        left[best] = -1;
        for (std::size_t e = 0; k == 0 && e < experts; ++e)
          if (allowed[best * experts + e] == 0) left[e] = -1;
      }
      for (std::size_t k = 0; k < top; ++k)
        EXPECT_NEAR(weights[t * top + k], normalise ? want[k] / kept : want[k], 2e-6);
    }
  }
}

TEST(AGateHeldToPartners, IsTheFreeGateToTheBitWhereAllArePartners) {
  Rng rng(3);
  const auto logits = random_values(rng, 50 * 16, 4);
  const std::vector<char> all(16 * 16, 1);
  for (const bool normalise : {false, true}) {
    std::vector<std::uint16_t> ids(50 * 4), free_ids(ids.size());
    std::vector<float> weights(ids.size()), free_weights(ids.size());
    gate_among(logits, 16, 4, normalise, all, ids, weights);
    gate(logits, 16, 4, normalise, free_ids, free_weights);
    EXPECT_EQ(ids, free_ids);
    EXPECT_TRUE(same_bits(weights, free_weights));
  }
}

TEST(AGate, ChoosesDistinctExpertsAmongNaNs) {
  const std::vector<float> logits(6, kPoison);
  std::vector<std::uint16_t> ids(3);
  std::vector<float> weights(3);
  gate(logits, 6, 3, true, ids, weights);
  EXPECT_THAT(ids, testing::ElementsAre(0, 1, 2));
}

}  // namespace
}  // namespace grace::kernels
