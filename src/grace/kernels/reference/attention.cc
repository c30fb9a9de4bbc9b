// The slow twin: the definition, in plain loops and f64 sums.
#include "grace/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace grace::kernels::reference {
namespace {

double wide(float x) { return static_cast<double>(x); }

}  // namespace

void attention(std::span<const float> q, std::span<const float> keys, std::span<const float> values,
               const AttentionShape& shape, std::span<float> out) {
  const auto heads = static_cast<std::size_t>(shape.heads),
             kv_heads = static_cast<std::size_t>(shape.kv_heads);
  const auto key_dim = static_cast<std::size_t>(shape.key_dim);
  const auto value_dim = static_cast<std::size_t>(shape.value_dim);
  const std::size_t length = keys.size() / (kv_heads * key_dim);
  const std::size_t num_new = q.size() / (heads * key_dim);
  for (std::size_t t = 0; t < num_new; ++t) {
    for (std::size_t h = 0; h < heads; ++h) {
      const float* query = q.data() + (t * heads + h) * key_dim;
      const std::size_t kv = h / (heads / kv_heads);
      const std::size_t last = length - num_new + t + 1;
      const auto window = static_cast<std::size_t>(shape.window);
      const std::size_t first = window > 0 && last > window ? last - window : 0;
      std::vector<double> weight(last - first);
      for (std::size_t j = first; j < last; ++j) {
        double score = 0;
        for (std::size_t i = 0; i < key_dim; ++i)
          score += wide(query[i]) * wide(keys[(j * kv_heads + kv) * key_dim + i]);
        weight[j - first] = score * wide(shape.scale);
      }
      const double largest = *std::ranges::max_element(weight);
      for (double& w : weight) w = std::exp(w - largest);
      const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
      for (std::size_t i = 0; i < value_dim; ++i) {
        double sum = 0;
        for (std::size_t j = first; j < last; ++j)
          sum += weight[j - first] / total * wide(values[(j * kv_heads + kv) * value_dim + i]);
        out[(t * heads + h) * value_dim + i] = static_cast<float>(sum);
      }
    }
  }
}

}  // namespace grace::kernels::reference
