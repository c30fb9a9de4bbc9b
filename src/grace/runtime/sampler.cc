#include "grace/runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace grace {

std::int32_t Sampler::choose(std::span<const float> logits) {
  const auto likeliest = std::ranges::max_element(logits);
  if (temperature_ == 0) return static_cast<std::int32_t>(likeliest - logits.begin());
  std::vector<double> weight(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i)
    weight[i] = std::exp((static_cast<double>(logits[i]) - static_cast<double>(*likeliest)) / temperature_);
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](std::int32_t a, std::int32_t b) {
    const double left = weight[static_cast<std::size_t>(a)];
    const double right = weight[static_cast<std::size_t>(b)];
    return left != right ? left > right : a < b;
  });
  // The nucleus: the fewest likeliest tokens whose share reaches top_p.
  const double bound = top_p_ * std::accumulate(weight.begin(), weight.end(), 0.0);
  double kept = 0;
  std::size_t count = 0;
  while (count < order.size() && (count == 0 || kept < bound))
    kept += weight[static_cast<std::size_t>(order[count++])];
  double left = rng_.uniform() * kept;
  for (std::size_t i = 0; i + 1 < count; ++i) {
    left -= weight[static_cast<std::size_t>(order[i])];
    if (left < 0) return order[i];
  }
  return order[count - 1];
}

}  // namespace grace
