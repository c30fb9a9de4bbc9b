// The slow twins: the definitions, in plain loops and f64 sums.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "grace/kernels/kernels.h"

namespace grace::kernels::reference {
namespace {

double wide(float x) { return static_cast<double>(x); }

}  // namespace

void matmul(std::span<const float> x, std::span<const float> weight, int out, int in, std::span<float> y) {
  const auto columns = static_cast<std::size_t>(out);
  const auto depth = static_cast<std::size_t>(in);
  for (std::size_t t = 0; t < x.size() / depth; ++t) {
    for (std::size_t c = 0; c < columns; ++c) {
      double sum = 0;
      for (std::size_t k = 0; k < depth; ++k) sum += wide(x[t * depth + k]) * wide(weight[c * depth + k]);
      y[t * columns + c] = static_cast<float>(sum);
    }
  }
}

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

void attention(std::span<const float> q, std::span<const float> keys, std::span<const float> values,
               int heads, int kv_heads, int head_dim, std::span<float> out) {
  const auto dim = static_cast<std::size_t>(head_dim);
  const auto num_heads = static_cast<std::size_t>(heads);
  const std::size_t stride = static_cast<std::size_t>(kv_heads) * dim;
  const std::size_t length = keys.size() / stride;
  const std::size_t num_new = q.size() / (num_heads * dim);
  for (std::size_t t = 0; t < num_new; ++t) {
    for (std::size_t h = 0; h < num_heads; ++h) {
      const float* query = q.data() + (t * num_heads + h) * dim;
      const std::size_t kv = h / (num_heads / static_cast<std::size_t>(kv_heads)) * dim;
      std::vector<double> weight(length - num_new + t + 1);
      for (std::size_t j = 0; j < weight.size(); ++j) {
        double score = 0;
        for (std::size_t i = 0; i < dim; ++i) score += wide(query[i]) * wide(keys[j * stride + kv + i]);
        weight[j] = score / std::sqrt(static_cast<double>(dim));
      }
      const double largest = *std::ranges::max_element(weight);
      for (double& w : weight) w = std::exp(w - largest);
      const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
      for (std::size_t i = 0; i < dim; ++i) {
        double sum = 0;
        for (std::size_t j = 0; j < weight.size(); ++j)
          sum += weight[j] / total * wide(values[j * stride + kv + i]);
        out[(t * num_heads + h) * dim + i] = static_cast<float>(sum);
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

void expert_ffn(std::span<const float> x, std::span<const float> gate, std::span<const float> up,
                std::span<const float> down, int hidden, int ffn, std::span<float> y) {
  const std::size_t rows = x.size() / static_cast<std::size_t>(hidden);
  std::vector<float> a(rows * static_cast<std::size_t>(ffn));
  std::vector<float> b(a.size());
  matmul(x, gate, ffn, hidden, a);
  matmul(x, up, ffn, hidden, b);
  for (std::size_t i = 0; i < a.size(); ++i)
    a[i] = static_cast<float>(wide(a[i]) / (1.0 + std::exp(-wide(a[i]))) * wide(b[i]));
  matmul(a, down, hidden, ffn, y);
}

}  // namespace grace::kernels::reference
