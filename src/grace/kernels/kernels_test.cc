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
#include "grace/kernels/cpu/tile.h"

namespace grace::kernels {
namespace {

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
constexpr double kUlp = 6e-8;  // half a unit in the last place of 1.0f

std::vector<float> random_values(Rng& rng, std::size_t count, double scale = 1) {
  std::vector<float> values(count);
  for (float& v : values) v = static_cast<float>((2 * rng.uniform() - 1) * scale);
  return values;
}

// Every value within `bound` of the reference's; a failure names the worst cell.
void expect_close(std::span<const float> got, std::span<const float> expected, double bound) {
  ASSERT_EQ(got.size(), expected.size());
  std::size_t worst = 0;
  double difference = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double d = std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i]));
    if (!(d <= difference)) {
      difference = d;
      worst = i;
    }
  }
  EXPECT_LE(difference, bound) << "cell " << worst
                               << (got.empty() ? ""
                                               : ": " + std::to_string(got[worst]) + " for " +
                                                     std::to_string(expected[worst]));
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

struct Shape {
  int rows, in, out;
};

class AMatmul : public testing::TestWithParam<Shape> {};

TEST_P(AMatmul, EqualsTheReferenceInEveryInstructionSet) {
  const auto [rows, in, out] = GetParam();
  Rng rng(7);
  const auto x = random_values(rng, static_cast<std::size_t>(rows * in));
  const auto weight = random_values(rng, static_cast<std::size_t>(out * in));
  std::vector<float> expected(static_cast<std::size_t>(rows * out), kPoison);
  reference::matmul(x, weight, out, in, expected);
  const PackedMatrix packed = pack(weight, out, in);
  for (const Tile& tile : usable_tiles()) {
    SCOPED_TRACE(std::string(tile.name));
    std::vector<float> y(expected.size(), kPoison);
    matmul_rows_with(tile, x, packed, y);
    // n additions of terms below 1: each partial sum is below n and is rounded once or twice.
    expect_close(y, expected, 2 * kUlp * in * in);
  }
  ThreadPool pool(2);
  std::vector<float> y(expected.size(), kPoison);
  matmul(x, packed, y, pool);
  expect_close(y, expected, 2 * kUlp * in * in);
}
INSTANTIATE_TEST_SUITE_P(Shapes, AMatmul,
                         testing::Values(Shape{1, 1, 1}, Shape{0, 5, 7}, Shape{3, 17, 31}, Shape{8, 64, 32},
                                         Shape{13, 33, 65}, Shape{37, 100, 96}, Shape{2, 257, 129}));

TEST(AMatmul, GivesARowTheSameBitsWhateverItsCompanyAndThreads) {
  constexpr int kIn = 71;
  constexpr int kOut = 101;
  Rng rng(11);
  const PackedMatrix weight = pack(random_values(rng, kOut * kIn), kOut, kIn);
  const auto x = random_values(rng, 37 * kIn);
  std::vector<float> alone(37 * kOut, kPoison);
  for (std::size_t r = 0; r < 37; ++r)
    matmul_rows(std::span(x).subspan(r * kIn, kIn), weight, std::span(alone).subspan(r * kOut, kOut));
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (std::size_t rows = 1; rows <= 37; ++rows) {
      for (const std::size_t first : {std::size_t{0}, 37 - rows}) {
        std::vector<float> y(rows * kOut, kPoison);
        matmul(std::span(x).subspan(first * kIn, rows * kIn), weight, y, pool);
        ASSERT_TRUE(same_bits(y, std::span(alone).subspan(first * kOut, rows * kOut)))
            << rows << " rows from " << first << ", " << threads << " threads";
      }
    }
  }
}

TEST(ATile, GivesARowTheSameBitsInEveryBlockHeight) {
  constexpr std::size_t kIn = 91;
  Rng rng(13);
  const PackedMatrix weight = pack(random_values(rng, 50 * kIn), 50, kIn);
  const auto x = random_values(rng, 20 * kIn);
  for (const Tile& tile : usable_tiles()) {
    std::vector<float> alone(20 * 50, kPoison);
    for (std::size_t r = 0; r < 20; ++r)
      matmul_rows_with(tile, std::span(x).subspan(r * kIn, kIn), weight,
                       std::span(alone).subspan(r * 50, 50));
    for (std::size_t rows = 1; rows <= 20; ++rows) {
      std::vector<float> y(rows * 50, kPoison);
      matmul_rows_with(tile, std::span(x).first(rows * kIn), weight, y);
      ASSERT_TRUE(same_bits(y, std::span(alone).first(rows * 50))) << tile.name << ", " << rows << " rows";
    }
  }
}

TEST(ATile, HasTheSameBitsInAvx2AndAvx512) {
  if (avx2_tile() == nullptr || avx512_tile() == nullptr) GTEST_SKIP() << "this processor has not both";
  Rng rng(17);
  const PackedMatrix weight = pack(random_values(rng, 70 * 300), 70, 300);
  const auto x = random_values(rng, 11 * 300);
  std::vector<float> a(11 * 70, kPoison);
  std::vector<float> b(11 * 70, kPoison);
  matmul_rows_with(*avx2_tile(), x, weight, a);
  matmul_rows_with(*avx512_tile(), x, weight, b);
  EXPECT_TRUE(same_bits(a, b));
}

TEST(AnExpert, EqualsTheReferenceAndGivesARowTheSameBitsWhateverItsCompany) {
  constexpr int kHidden = 48;
  constexpr int kFfn = 70;
  Rng rng(19);
  const auto gate = random_values(rng, kFfn * kHidden, 0.3);
  const auto up = random_values(rng, kFfn * kHidden, 0.3);
  const auto down = random_values(rng, kHidden * kFfn, 0.3);
  const PackedExpert expert{pack(gate, kFfn, kHidden), pack(up, kFfn, kHidden), pack(down, kHidden, kFfn)};
  const auto x = random_values(rng, 37 * kHidden);
  std::vector<float> expected(x.size(), kPoison);
  reference::expert_ffn(x, gate, up, down, kHidden, kFfn, expected);
  std::vector<float> alone(x.size(), kPoison);
  for (std::size_t r = 0; r < 37; ++r)
    expert_ffn(std::span(x).subspan(r * kHidden, kHidden), expert,
               std::span(alone).subspan(r * kHidden, kHidden));
  expect_close(alone, expected, 1e-4);
  for (std::size_t rows = 1; rows <= 37; ++rows) {
    std::vector<float> y(rows * kHidden, kPoison);
    expert_ffn(std::span(x).first(rows * kHidden), expert, y);
    ASSERT_TRUE(same_bits(y, std::span(alone).first(rows * kHidden))) << rows << " rows";
  }
}

TEST(AnExpert, TakesNoRows) {
  Rng rng(1);
  const PackedExpert expert{pack(random_values(rng, 6), 2, 3), pack(random_values(rng, 6), 2, 3),
                            pack(random_values(rng, 6), 3, 2)};
  expert_ffn({}, expert, {});
}

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

TEST(Attention, EqualsTheReferenceWithSharedHeads) {
  Rng rng(37);
  ThreadPool pool(3);
  for (const auto& [num_new, length] :
       {std::pair{1, 1}, std::pair{1, 9}, std::pair{7, 7}, std::pair{5, 12}}) {
    for (const int dim : {4, 16, 22}) {
      const auto q = random_values(rng, static_cast<std::size_t>(num_new * 6 * dim), 3);
      const auto keys = random_values(rng, static_cast<std::size_t>(length * 2 * dim), 3);
      const auto values = random_values(rng, keys.size());
      std::vector<float> expected(q.size(), kPoison);
      reference::attention(q, keys, values, 6, 2, dim, expected);
      std::vector<float> out(q.size(), kPoison);
      attention(q, keys, values, 6, 2, dim, out, pool);
      expect_close(out, expected, 2e-5);
    }
  }
}

TEST(Attention, GivesATokenTheSameBitsInAPrefillAndAlone) {
  constexpr std::size_t kRow = 4 * 10;
  Rng rng(41);
  const auto q = random_values(rng, 9 * kRow);
  const auto keys = random_values(rng, 9 * kRow);
  const auto values = random_values(rng, 9 * kRow);
  ThreadPool pool(1);
  std::vector<float> alone(q.size(), kPoison);
  for (std::size_t t = 0; t < 9; ++t) {
    attention(std::span(q).subspan(t * kRow, kRow), std::span(keys).first((t + 1) * kRow),
              std::span(values).first((t + 1) * kRow), 4, 4, 10, std::span(alone).subspan(t * kRow, kRow),
              pool);
  }
  for (const int threads : {1, 2, 5}) {
    ThreadPool many(threads);
    std::vector<float> together(q.size(), kPoison);
    attention(q, keys, values, 4, 4, 10, together, many);
    EXPECT_TRUE(same_bits(together, alone)) << threads;
  }
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
