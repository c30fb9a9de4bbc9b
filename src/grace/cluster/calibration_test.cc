#include "grace/cluster/calibration.h"

#include <gmock/gmock.h>

#include <cmath>
#include <string>

#include "grace/base/rng.h"

namespace grace {
namespace {

using testing::DoubleNear;
using testing::Each;
using testing::ElementsAre;

constexpr double kSizes[] = {64, 16'384, 262'144, 1'048'576, 4'194'304};

// Samples of `rounds` rounds of a link whose times are off by up to `noise`, and of which a share is up to
// 50 times as slow.
std::vector<ExchangeSample> samples_of(Link link, double noise, double outliers, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<ExchangeSample> samples;
  for (int round = 0; round < 21; ++round) {
    for (const double bytes : kSizes) {
      double seconds = link.latency_s + bytes / link.bytes_per_s;
      seconds *= 1 + noise * (2 * rng.uniform() - 1);
      if (rng.uniform() < outliers) seconds *= 1 + 49 * rng.uniform();
      samples.push_back({bytes, seconds});
    }
  }
  return samples;
}

TEST(ALinkFit, FindsAnExactLinkExactly) {
  for (const Link link : {Link{1e9, 1e-5}, Link{125e6, 2e-4}, Link{5e10, 5e-7}}) {
    const LinkFit fit = fit_link(samples_of(link, 0, 0, 1));
    // The smallest message's own bytes are taken for latency.
    EXPECT_NEAR(fit.link.latency_s, link.latency_s + 64 / link.bytes_per_s, 1e-15);
    EXPECT_NEAR(fit.link.bytes_per_s / link.bytes_per_s, 1, 1e-3);
    EXPECT_NEAR(fit.rate_spread, 0, 1e-3);
    EXPECT_EQ(fit.latency_spread, 0);
  }
}

TEST(ALinkFit, StandsNoiseAndOutliers) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Link link{2e9, 2e-5};
    const LinkFit fit = fit_link(samples_of(link, 0.1, 0.15, seed));
    EXPECT_NEAR(fit.link.latency_s / link.latency_s, 1, 0.1);
    EXPECT_NEAR(fit.link.bytes_per_s / link.bytes_per_s, 1, 0.1);
    EXPECT_GT(fit.rate_spread, 0.01);
  }
}

TEST(ALinkFit, ForgetsTheOrderOfItsSamples) {
  std::vector<ExchangeSample> samples = samples_of({1e9, 1e-5}, 0.2, 0.1, 3);
  const Link link = fit_link(samples).link;
  Rng rng(4);
  rng.shuffle(std::span(samples));
  EXPECT_EQ(fit_link(samples).link, link);
}

TEST(ALinkFit, IsPositiveWhereSizeDoesNotShow) {
  // A link so fast, or a clock so coarse, that all sizes take the same time or less.
  const std::vector<ExchangeSample> samples = {{64, 2e-5}, {1e6, 1e-5}, {2e6, 1e-5}, {4e6, 2e-5}};
  const LinkFit fit = fit_link(samples);
  EXPECT_GT(fit.link.bytes_per_s, 0);
  EXPECT_TRUE(std::isfinite(fit.link.bytes_per_s));
  EXPECT_EQ(fit.link.latency_s, 2e-5);
}

TEST(ALinkFitDeathTest, NeedsTwoSizes) {
  const std::vector<ExchangeSample> one_size = {{64, 1e-5}, {64, 2e-5}};
  EXPECT_DEATH(static_cast<void>(fit_link(one_size)), "two sizes");
}

TEST(AFigure, IsTheMedianWithTheQuartilesApart) {
  EXPECT_EQ(figure_of(std::vector<double>{3}).value, 3);
  EXPECT_EQ(figure_of(std::vector<double>{3}).spread, 0);
  EXPECT_EQ(figure_of(std::vector<double>{4, 1, 3, 2}).value, 2.5);
  const Figure figure = figure_of(std::vector<double>{50, 10, 30, 20, 40});
  EXPECT_EQ(figure.value, 30);
  EXPECT_DOUBLE_EQ(figure.spread, 20.0 / 30);
  EXPECT_EQ(figure_of(std::vector<double>{0, 0}).spread, 0);
}

std::vector<std::vector<double>> rounds_of(const std::vector<double>& speeds, double noise, bool drift,
                                           std::uint64_t seed) {
  Rng rng(seed);
  std::vector<std::vector<double>> rates;
  for (int round = 0; round < 20; ++round) {
    const double common = drift && round >= 10 ? 0.5e9 : 1e9;  // all ranks at half the speed from here on
    auto& row = rates.emplace_back();
    for (const double speed : speeds) row.push_back(common * speed * (1 + noise * (2 * rng.uniform() - 1)));
  }
  return rates;
}

TEST(RelativeSpeeds, AreAllOneWhereOnlyNoiseTellsRanksApart) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    EXPECT_THAT(relative_speeds(rounds_of({1, 1, 1, 1}, 0.1, true, seed)), Each(1.0));
  }
}

TEST(RelativeSpeeds, SeldomTellEqualRanksApartInWildNoise) {
  int told = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed)
    for (const double speed : relative_speeds(rounds_of({1, 1, 1, 1}, 0.5, true, seed)))
      told += speed != 1 ? 1 : 0;
  EXPECT_LE(told, 2);  // of 400
}

TEST(RelativeSpeeds, FindTheOnesThatDiffer) {
  const auto speeds = relative_speeds(rounds_of({1, 0.5, 1, 1.3, 1}, 0.04, true, 5));
  EXPECT_THAT(speeds, ElementsAre(1, DoubleNear(0.5, 0.03), 1, DoubleNear(1.3, 0.06), 1));
}

TEST(RelativeSpeeds, TakeMoreThanAFewRoundsToTell) {
  auto rates = rounds_of({1, 0.5, 1}, 0, false, 8);
  rates.resize(kLeastRoundsForSpeeds - 1);
  EXPECT_THAT(relative_speeds(rates), Each(1.0));
  rates.push_back(rates.back());
  EXPECT_THAT(relative_speeds(rates), ElementsAre(1, 0.5, 1));
}

TEST(RelativeSpeeds, ForgiveAPassingSlowness) {
  auto rates = rounds_of({1, 1, 1}, 0.02, false, 6);
  for (std::size_t round = 0; round < 5; ++round) rates[round][1] /= 3;
  EXPECT_THAT(relative_speeds(rates), Each(1.0));
}

TEST(ARate, IsThatOfTheMedianRank) {
  EXPECT_EQ(rate_of(std::vector<std::vector<double>>{{1, 2, 30}, {1, 4, 30}, {1, 3, 30}}).value, 3);
}

}  // namespace
}  // namespace grace
