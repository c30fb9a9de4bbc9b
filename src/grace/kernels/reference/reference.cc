// The slow twins: the definitions, in plain loops and f64 sums.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "grace/kernels/kernels.h"

namespace grace::kernels::reference {
namespace {

double wide(float x) { return static_cast<double>(x); }

}  // namespace

void rms_norm(std::span<const float> x, std::span<const float> scale, double eps, std::span<float> y) {
  const std::size_t n = scale.size();
  for (std::size_t t = 0; t < x.size() / n; ++t) {
    double squares = 0;
    for (std::size_t i = 0; i < n; ++i) squares += wide(x[t * n + i]) * wide(x[t * n + i]);
    for (std::size_t i = 0; i < n; ++i) {
      y[t * n + i] = static_cast<float>(wide(x[t * n + i]) /
                                        std::sqrt(squares / static_cast<double>(n) + eps) * wide(scale[i]));
    }
  }
}

void rope(std::span<float> x, int heads, int head_dim, std::span<const std::int32_t> positions,
          double theta) {
  const auto dim = static_cast<std::size_t>(head_dim);
  const std::size_t half = dim / 2;
  for (std::size_t t = 0; t < positions.size(); ++t) {
    for (std::size_t h = 0; h < static_cast<std::size_t>(heads); ++h) {
      float* head = x.data() + (t * static_cast<std::size_t>(heads) + h) * dim;
      for (std::size_t i = 0; i < half; ++i) {
        const double angle =
            positions[t] * std::pow(theta, -static_cast<double>(2 * i) / static_cast<double>(dim));
        const double a = wide(head[i]);
        const double b = wide(head[i + half]);
        head[i] = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
        head[i + half] = static_cast<float>(b * std::cos(angle) + a * std::sin(angle));
      }
    }
  }
}

void gate(std::span<const float> logits, int num_experts, int experts_per_token, bool normalise,
          std::span<std::uint16_t> ids, std::span<float> weights) {
  const auto experts = static_cast<std::size_t>(num_experts);
  const auto top = static_cast<std::size_t>(experts_per_token);
  for (std::size_t t = 0; t < logits.size() / experts; ++t) {
    const auto row = logits.subspan(t * experts, experts);
    std::vector<std::size_t> order(experts);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return row[a] > row[b]; });
    double total = 0;
    for (std::size_t e = 0; e < (normalise ? top : experts); ++e)
      total += std::exp(wide(row[order[e]]) - wide(row[order[0]]));
    for (std::size_t k = 0; k < top; ++k) {
      ids[t * top + k] = static_cast<std::uint16_t>(order[k]);
      weights[t * top + k] = static_cast<float>(std::exp(wide(row[order[k]]) - wide(row[order[0]])) / total);
    }
  }
}

}  // namespace grace::kernels::reference
