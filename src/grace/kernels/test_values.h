// What tests of kernels share.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "grace/base/bf16.h"
#include "grace/base/rng.h"

namespace grace::kernels {

inline constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
inline constexpr double kUlp = 6e-8;  // half a unit in the last place of 1.0f

inline std::vector<float> random_values(Rng& rng, std::size_t count, double scale = 1) {
  std::vector<float> values(count);
  for (float& v : values) v = static_cast<float>((2 * rng.uniform() - 1) * scale);
  return values;
}

inline std::vector<float> rounded(std::span<const float> values) {
  std::vector<float> out;
  for (const float v : values) out.push_back(f32_of_bf16(bf16_of_f32(v)));
  return out;
}

// Every value within `bound` of the reference's; a failure names the worst cell.
inline void expect_close(std::span<const float> got, std::span<const float> expected, double bound) {
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

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

}  // namespace grace::kernels
