#include "grace/kernels/norm.h"

#include <array>
#include <cmath>

#include "grace/base/check.h"
#include "grace/kernels/cpu/shares.h"

namespace grace::kernels {
namespace {

// Sum of squares in eight interleaved f64 sums, so that the additions of a row do not wait for one another.
double sum_of_squares(std::span<const float> x) {
  std::array<double, 8> lanes{};
  std::size_t i = 0;
  for (; i + lanes.size() <= x.size(); i += lanes.size())
    for (std::size_t l = 0; l < lanes.size(); ++l)
      lanes[l] += static_cast<double>(x[i + l]) * static_cast<double>(x[i + l]);
  for (std::size_t l = 0; i < x.size(); ++i, ++l)
    lanes[l] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

void norm_row(std::span<const float> x, std::span<const float> scale, double eps, std::span<float> y) {
  const auto factor =
      static_cast<float>(1.0 / std::sqrt(sum_of_squares(x) / static_cast<double>(scale.size()) + eps));
  for (std::size_t i = 0; i < scale.size(); ++i) y[i] = x[i] * factor * scale[i];
}

}  // namespace

void rms_norm(std::span<const float> x, std::span<const float> scale, double eps, std::span<float> y,
              ThreadPool& pool) {
  const std::size_t n = scale.size();
  GRACE_CHECK(n > 0 && x.size() % n == 0 && y.size() == x.size(), "x and y are not [T, n]");
  for_each_share(x.size() / n, n, pool, [&](std::size_t first, std::size_t last) {
    for (std::size_t row = first; row < last; ++row)
      norm_row(x.subspan(row * n, n), scale, eps, y.subspan(row * n, n));
  });
}

void rms_norm_row(std::span<float> x, std::span<const float> scale, double eps) {
  GRACE_CHECK(x.size() == scale.size() && !x.empty(), "x is not [n]");
  norm_row(x, scale, eps, x);
}

}  // namespace grace::kernels
