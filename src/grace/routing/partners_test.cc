#include "grace/routing/partners.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "grace/base/rng.h"
#include "grace/routing/routing.h"

namespace grace {
namespace {

using testing::ElementsAre;

using Choices = std::vector<std::uint16_t>;

// Expert 0: best with 3, then 2. 1: with 0, 2. 2: with 3, 1. 3: with 2, 0.
LayerPlan layer_of_four() {
  LayerPlan layer;
  for (const std::vector<int>& partners : std::vector<std::vector<int>>{{3, 2}, {0, 2}, {3, 1}, {2, 0}}) {
    auto& list = layer.partners_of_expert.emplace_back();
    for (const int partner : partners) list.push_back(ExpertId(partner));
  }
  return layer;
}

Choices held(Choices choices, const std::vector<float>& weights = {}) {
  hold_to_partners(layer_of_four(), choices, weights);
  return choices;
}

TEST(AChoiceHeldToPartners, KeepsTheBestAndItsPartners) {
  EXPECT_THAT(held({0, 2}), ElementsAre(0, 2));
  EXPECT_THAT(held({0, 3}), ElementsAre(0, 3));
  EXPECT_THAT(held({1}), ElementsAre(1));
}

TEST(AChoiceHeldToPartners, TakesTheBestPartnerNotChosenInPlaceOfAnother) {
  EXPECT_THAT(held({0, 1}), ElementsAre(0, 3));
  EXPECT_THAT(held({0, 1, 3}), ElementsAre(0, 2, 3));
}

TEST(AChoiceHeldToPartners, KnowsTheBestByItsWeight) {
  EXPECT_THAT(held({0, 1}, {0.2F, 0.3F}), ElementsAre(0, 1)) << "0 is a partner of 1";
  EXPECT_THAT(held({1, 3}, {0.2F, 0.3F}), ElementsAre(2, 3)) << "1 is none of 3";
  EXPECT_THAT(held({1, 3}, {0.3F, 0.3F}), ElementsAre(1, 0)) << "the first of two alike";
}

TEST(AChoiceHeldToPartners, LeavesWhatIsNotChosen) {
  EXPECT_THAT(held({kNotChosen, 0, 1}), ElementsAre(kNotChosen, 0, 3));
  EXPECT_THAT(held({kNotChosen, kNotChosen}), ElementsAre(kNotChosen, kNotChosen));
}

TEST(AChoiceHeldToPartners, IsAnyChoiceWhereTheGateIsFree) {
  Choices choices{3, 1};
  hold_to_partners(LayerPlan(), choices);
  EXPECT_THAT(choices, ElementsAre(3, 1));
}

class AnyChoiceHeldToPartners : public testing::TestWithParam<std::uint64_t> {};

TEST_P(AnyChoiceHeldToPartners, IsAllowedDistinctAndStays) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  const int experts = 2 + static_cast<int>(rng.below(9));
  const auto top_k = static_cast<std::size_t>(1 + rng.below(static_cast<std::uint64_t>(experts)));
  const std::size_t partners =
      std::max<std::size_t>(1, top_k - 1 + rng.below(static_cast<std::uint64_t>(experts) - top_k + 1));
  LayerPlan layer;
  std::vector<ExpertId> all;
  for (int e = 0; e < experts; ++e) all.push_back(ExpertId(e));
  for (int e = 0; e < experts; ++e) {
    rng.shuffle(std::span(all));
    auto& list = layer.partners_of_expert.emplace_back();
    for (const ExpertId other : all)
      if (other != ExpertId(e) && list.size() < partners) list.push_back(other);
  }
  for (int repeat = 0; repeat < 30; ++repeat) {
    rng.shuffle(std::span(all));
    Choices choices;
    for (std::size_t k = 0; k < top_k; ++k)
      choices.push_back(rng.below(6) == 0 ? kNotChosen : static_cast<std::uint16_t>(all[k].value));
    const Choices before = choices;
    hold_to_partners(layer, choices);
    std::set<std::uint16_t> distinct;
    const auto first = std::ranges::find_if(before, [](std::uint16_t c) { return c != kNotChosen; });
    for (std::size_t k = 0; k < top_k; ++k) {
      ASSERT_EQ(choices[k] == kNotChosen, before[k] == kNotChosen);
      if (choices[k] == kNotChosen) continue;
      EXPECT_TRUE(distinct.insert(choices[k]).second);
      if (choices[k] == *first) continue;
      const auto& list = layer.partners_of_expert[*first];
      EXPECT_TRUE(std::ranges::count(list, ExpertId(choices[k])) == 1);
      // What was a partner stays.
      if (std::ranges::count(list, ExpertId(before[k])) == 1) {
        EXPECT_EQ(choices[k], before[k]);
      }
    }
    Choices again = choices;
    hold_to_partners(layer, again);
    EXPECT_EQ(again, choices);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, AnyChoiceHeldToPartners, testing::Range<std::uint64_t>(0, 60));

}  // namespace
}  // namespace grace
