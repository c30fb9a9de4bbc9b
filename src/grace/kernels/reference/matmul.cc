// The slow twins: the definitions, in plain loops and f64 sums.
#include "grace/kernels/matmul.h"

#include <cmath>
#include <vector>

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
