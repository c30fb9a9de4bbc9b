#include "grace/kernels/gate.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>

#include "grace/kernels/test_values.h"

namespace grace::kernels {
namespace {

struct Chosen {
  std::vector<std::uint16_t> ids;
  std::vector<float> weights;
};

Chosen chosen(std::span<const float> logits, const GateRule& rule, std::span<const float> bias = {},
              std::span<const char> allowed = {}, int threads = 1) {
  ThreadPool pool(threads);
  const std::size_t cells =
      logits.size() / static_cast<std::size_t>(rule.experts) * static_cast<std::size_t>(rule.top);
  Chosen made{std::vector<std::uint16_t>(cells), std::vector<float>(cells, kPoison)};
  gate(logits, rule, bias, allowed, made.ids, made.weights, pool);
  return made;
}

TEST(AGate, WeighsByTheSoftmaxOverAllExpertsUnlessAskedToNormalise) {
  const std::vector<float> logits{2, 1, 0, -1};
  const Chosen plain = chosen(logits, {.experts = 4, .top = 2});
  EXPECT_THAT(plain.ids, testing::ElementsAre(0, 1));
  EXPECT_NEAR(plain.weights[0], 0.6439, 5e-5);
  EXPECT_NEAR(plain.weights[1], 0.2369, 5e-5);
  const Chosen normalised = chosen(logits, {.experts = 4, .top = 2, .normalise = true});
  EXPECT_NEAR(normalised.weights[0], 0.7311, 5e-5);
  EXPECT_NEAR(normalised.weights[1], 0.2689, 5e-5);
}

TEST(AGate, ScalesItsWeightsOnceAlsoWhereItDoesNotNormalise) {
  const std::vector<float> logits{2, 1, 0, -1};
  EXPECT_NEAR(chosen(logits, {.experts = 4, .top = 2, .scale = 16}).weights[1], 16 * 0.2369, 1e-3);
  EXPECT_NEAR(chosen(logits, {.experts = 4, .top = 2, .normalise = true, .scale = 2.5F}).weights[0],
              2.5 * 0.7311, 1e-3);
}

TEST(AGate, GivesTiesToTheLowerIdAndOrdersByProbability) {
  const std::vector<float> logits{0, 3, 3, 1, 3, 0, 0, 0, 0, 0};
  EXPECT_THAT(chosen(logits, {.experts = 5, .top = 3}).ids, testing::ElementsAre(1, 2, 4, 0, 1, 2));
}

TEST(AGate, LimitsATokenToItsBestGroups) {
  // The best expert of group 0 is the best of all; groups 1 and 2 have two good ones each.
  const std::vector<float> logits{5, -9, 4, 3.9F, 3.8F, 3.7F, 0, 0};
  const GateRule rule{.experts = 8, .top = 3, .groups = 4, .groups_kept = 2};
  EXPECT_THAT(chosen(logits, rule).ids, testing::ElementsAre(0, 2, 3));
  GateRule by_two = rule;
  by_two.scores = Scores::kSigmoid;
  by_two.group_best = 2;
  EXPECT_THAT(chosen(logits, by_two).ids, testing::ElementsAre(2, 3, 4));
}

TEST(AGate, UsesItsBiasToChooseAndNotToWeigh) {
  const std::vector<float> logits{0, 0, 0, 0}, bias{0, 0.5F, -3, 0.2F};
  const Chosen made = chosen(logits, {.experts = 4, .top = 2, .scores = Scores::kSigmoid}, bias);
  EXPECT_THAT(made.ids, testing::ElementsAre(1, 3));
  EXPECT_THAT(made.weights, testing::ElementsAre(0.5F, 0.5F));
}

// Masked with 0 in place of being left out, an expert outside the groups kept would be chosen here.
TEST(AGate, LeavesGroupsOutAlsoWhereBiasedScoresAreNegative) {
  const std::vector<float> logits{1, 1, 0, 0}, bias{-2, -2, -3, -3};
  const GateRule rule{
      .experts = 4, .top = 2, .scores = Scores::kSigmoid, .groups = 2, .groups_kept = 1, .group_best = 2};
  EXPECT_THAT(chosen(logits, rule, bias).ids, testing::ElementsAre(0, 1));
}

TEST(AGate, EqualsTheReferenceOnRandomLogits) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    GateRule rule;
    rule.groups = 1 + static_cast<int>(rng.below(5));
    const int size = 2 + static_cast<int>(rng.below(14));
    rule.experts = rule.groups * size;
    rule.groups_kept = 1 + static_cast<int>(rng.below(static_cast<std::uint64_t>(rule.groups)));
    rule.group_best = 1 + static_cast<int>(rng.below(2));
    rule.top = 1 + static_cast<int>(rng.below(static_cast<std::uint64_t>(rule.groups_kept * size)));
    rule.scores = rng.below(2) == 0 ? Scores::kSoftmax : Scores::kSigmoid;
    rule.normalise = rng.below(2) == 0;
    rule.scale = rng.below(2) == 0 ? 1.0F : 2.5F;
    const auto logits = random_values(rng, static_cast<std::size_t>(9 * rule.experts), 4);
    const auto bias = rng.below(2) == 0 ? std::vector<float>()
                                        : random_values(rng, static_cast<std::size_t>(rule.experts), 0.5);
    Chosen expected = chosen(logits, rule, bias);
    const Chosen made = expected;
    reference::gate(logits, rule, bias, expected.ids, expected.weights);
    EXPECT_EQ(made.ids, expected.ids);
    expect_close(made.weights, expected.weights, 5e-6);
    std::vector<float> again(made.weights.size(), kPoison);
    weigh(logits, rule, made.ids, again);
    EXPECT_TRUE(same_bits(again, made.weights));
  }
}

TEST(AGate, HasTheSameBitsAtAnyThreadCount) {
  Rng rng(5);
  const auto logits = random_values(rng, 400 * 64, 4);
  const GateRule rule{.experts = 64, .top = 6, .groups = 8, .groups_kept = 3};
  const Chosen alone = chosen(logits, rule);
  const Chosen shared = chosen(logits, rule, {}, {}, 3);
  EXPECT_EQ(shared.ids, alone.ids);
  EXPECT_TRUE(same_bits(shared.weights, alone.weights));
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
    const bool normalise = seed % 2 == 0;
    const Chosen made = chosen(
        logits, {.experts = static_cast<int>(experts), .top = static_cast<int>(top), .normalise = normalise},
        {}, allowed);
    for (std::size_t t = 0; t < tokens; ++t) {
      std::vector<double> left(experts);
      double all = 0, kept = 0;
      for (std::size_t e = 0; e < experts; ++e)
        all += left[e] = std::exp(static_cast<double>(logits[t * experts + e]));
      std::vector<double> want;
      for (std::size_t k = 0; k < top; ++k) {
        const auto best = static_cast<std::size_t>(std::ranges::max_element(left) - left.begin());
        ASSERT_EQ(made.ids[t * top + k], best);
        want.push_back(left[best] / all);
        kept += want.back();
        left[best] = -1;
        for (std::size_t e = 0; k == 0 && e < experts; ++e)
          if (allowed[best * experts + e] == 0) left[e] = -1;
      }
      for (std::size_t k = 0; k < top; ++k)
        EXPECT_NEAR(made.weights[t * top + k], normalise ? want[k] / kept : want[k], 2e-6);
    }
  }
}

TEST(AGateHeldToPartners, IsTheFreeGateToTheBitWhereAllArePartners) {
  Rng rng(3);
  const auto logits = random_values(rng, 50 * 16, 4);
  const std::vector<char> all(16 * 16, 1);
  for (const bool normalise : {false, true}) {
    const GateRule rule{.experts = 16, .top = 4, .normalise = normalise};
    const Chosen held = chosen(logits, rule, {}, all), free = chosen(logits, rule);
    EXPECT_EQ(held.ids, free.ids);
    EXPECT_TRUE(same_bits(held.weights, free.weights));
  }
}

TEST(AGate, ChoosesDistinctExpertsAmongNaNs) {
  const std::vector<float> logits(6, kPoison);
  EXPECT_THAT(chosen(logits, {.experts = 6, .top = 3, .normalise = true}).ids, testing::ElementsAre(0, 1, 2));
  const GateRule grouped{.experts = 6, .top = 2, .groups = 3, .groups_kept = 1};
  EXPECT_THAT(chosen(logits, grouped).ids, testing::ElementsAre(0, 1));
}

}  // namespace
}  // namespace grace::kernels
