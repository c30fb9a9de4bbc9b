#include "grace/kernels/norm.h"

#include "grace/kernels/test_values.h"

namespace grace::kernels {
namespace {

TEST(RmsNorm, EqualsTheReferenceAlsoInPlaceAndByItself) {
  Rng rng(23);
  ThreadPool pool(1);
  for (const std::size_t n : {1UL, 7UL, 64UL, 101UL}) {
    auto x = random_values(rng, 5 * n, 3);
    const auto scale = random_values(rng, n);
    std::vector<float> expected(x.size(), kPoison);
    reference::rms_norm(x, scale, 1e-5, expected);
    std::vector<float> y(x.size(), kPoison);
    rms_norm(x, scale, 1e-5, y, pool);
    expect_close(y, expected, 1e-5);
    auto row = std::vector<float>(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(n));
    rms_norm_row(row, scale, 1e-5);
    EXPECT_TRUE(same_bits(row, std::span(y).first(n)));
    rms_norm(x, scale, 1e-5, x, pool);
    EXPECT_TRUE(same_bits(x, y));
  }
}

TEST(RmsNorm, HasTheSameBitsAtAnyThreadCount) {
  Rng rng(29);
  const auto x = random_values(rng, 300 * 96, 3);
  const auto scale = random_values(rng, 96);
  ThreadPool one(1);
  std::vector<float> alone(x.size(), kPoison);
  rms_norm(x, scale, 1e-6, alone, one);
  for (const int threads : {2, 5}) {
    ThreadPool pool(threads);
    std::vector<float> y(x.size(), kPoison);
    rms_norm(x, scale, 1e-6, y, pool);
    EXPECT_TRUE(same_bits(y, alone)) << threads;
  }
}

}  // namespace
}  // namespace grace::kernels
