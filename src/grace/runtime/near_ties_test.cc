#include "grace/runtime/near_ties.h"

#include <gtest/gtest.h>

namespace grace {
namespace {

TEST(ANearTie, IsBoundedByLayersExpertsAndTheWire) {
  ModelConfig config;
  config.moe_layers = {0, 1, 2};
  config.experts_per_token = 8;
  EXPECT_EQ(near_tie_bound(config, Combine::kExact, Wire::kF32), 0);
  EXPECT_EQ(near_tie_bound(config, Combine::kReduced, Wire::kF32), 2 * 3 * 2 * 7 * 0x1p-24);
  EXPECT_EQ(near_tie_bound(config, Combine::kExact, Wire::kBf16), 0);
  EXPECT_EQ(near_tie_bound(config, Combine::kReduced, Wire::kBf16), 2 * 3 * (2 * 7 * 0x1p-24 + 2 * 0x1p-8));
  config.experts_per_token = 1;
  EXPECT_EQ(near_tie_bound(config, Combine::kReduced, Wire::kF32), 0);
}

TEST(ANearTie, IsJudgedByTheReferencesMarginAtTheFirstTokenThatDiffers) {
  const TokenMargin clear{1.0F, 10.0F, 9}, close{0.5F, 10.0F, 9};
  const std::vector<std::vector<std::int32_t>> reference{{1, 2, 3}, {1, 2, 3}, {1, 2, 3}, {4}};
  const std::vector<std::vector<TokenMargin>> margins{
      {close, close, clear}, {clear, close, clear}, {close, clear, close}, {close}};
  const std::vector<std::vector<std::int32_t>> outputs{
      {1, 2, 3},  // the same, near-ties or not
      {1, 9, 9},  // parts where it is close: what comes after does not matter
      {1, 9, 3},  // parts where it is clear
      {4, 5}};    // goes on where the reference has ended: no rounding does that
  const TextDifference found = difference_of(reference, margins, outputs, 0.05);
  EXPECT_EQ(found.prompts, 3);
  EXPECT_EQ(found.near_ties, 1);
  EXPECT_FALSE(found.is_explained());
  EXPECT_EQ(difference_of(reference, margins, outputs, 0.1).near_ties, 2);
  EXPECT_EQ(difference_of(reference, margins, outputs, 0.049).near_ties, 0);
  EXPECT_TRUE(difference_of(reference, margins, reference, 0).is_explained());
}

TEST(ANearTie, IsNoExcuseForExactResultsEvenAtATie) {
  const TokenMargin tie{0.0F, 10.0F, 9};
  EXPECT_EQ(difference_of({{1}}, {{tie}}, {{9}}, 0).near_ties, 0);
  EXPECT_EQ(difference_of({{1}}, {{tie}}, {{9}}, 1e-9).near_ties, 1);
}

}  // namespace
}  // namespace grace
