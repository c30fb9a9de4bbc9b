#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "grace/base/check.h"
#include "grace/kernels/kernels.h"

namespace grace::kernels {
namespace {

constexpr std::size_t kLanes = 16;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

// A dot product in sixteen interleaved sums, added up in a fixed order.
float dot(const float* a, const float* b, std::size_t n) {
  Lanes sums = {};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Lanes x;
    Lanes y;
    std::memcpy(&x, a + i, sizeof x);
    std::memcpy(&y, b + i, sizeof y);
    sums += x * y;
  }
  std::array<float, kLanes> lanes;
  std::memcpy(lanes.data(), &sums, sizeof sums);
  for (std::size_t lane = 0; i + lane < n; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  for (std::size_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// One query head over `length` keys and values, `stride` floats apart; scores is scratch of that length.
void attend(const float* q, const float* keys, const float* values, std::size_t stride, std::size_t dim,
            std::span<float> scores, float* out) {
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
  for (std::size_t j = 0; j < scores.size(); ++j) scores[j] = dot(q, keys + j * stride, dim) * scale;
  const float largest = *std::ranges::max_element(scores);
  double sum = 0;
  for (float& s : scores) {
    s = std::exp(s - largest);
    sum += static_cast<double>(s);
  }
  std::fill_n(out, dim, 0.0F);
  for (std::size_t j = 0; j < scores.size(); ++j) {
    const float p = static_cast<float>(static_cast<double>(scores[j]) / sum);
    const float* value = values + j * stride;
    for (std::size_t i = 0; i < dim; ++i) out[i] += p * value[i];
  }
}

}  // namespace

void attention(std::span<const float> q, std::span<const float> keys, std::span<const float> values,
               int heads, int kv_heads, int head_dim, std::span<float> out, ThreadPool& pool) {
  const auto num_heads = static_cast<std::size_t>(heads);
  const auto dim = static_cast<std::size_t>(head_dim);
  const std::size_t stride = static_cast<std::size_t>(kv_heads) * dim;
  GRACE_CHECK(kv_heads > 0 && heads % kv_heads == 0, "heads are not a multiple of kv_heads");
  GRACE_CHECK(q.size() % (num_heads * dim) == 0 && out.size() == q.size(),
              "q and out are not [num_new, heads, head_dim]");
  const std::size_t length = keys.size() / stride;
  const std::size_t num_new = q.size() / (num_heads * dim);
  GRACE_CHECK(length * stride == keys.size() && values.size() == keys.size() && length >= num_new,
              "keys and values are not [length, kv_heads, head_dim]");
  const std::size_t heads_per_kv = num_heads / static_cast<std::size_t>(kv_heads);
  std::vector<std::vector<float>> scratch(static_cast<std::size_t>(pool.num_threads()));
  pool.for_each(num_new * num_heads, [&](std::size_t item, int thread) {
    const std::size_t visible = length - num_new + item / num_heads + 1;
    const std::size_t offset = item % num_heads / heads_per_kv * dim;
    std::vector<float>& scores = scratch[static_cast<std::size_t>(thread)];
    scores.resize(std::max(scores.size(), visible));
    attend(q.data() + item * dim, keys.data() + offset, values.data() + offset, stride, dim,
           std::span(scores).first(visible), out.data() + item * dim);
  });
}

}  // namespace grace::kernels
