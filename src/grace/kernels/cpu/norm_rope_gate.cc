#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "grace/base/check.h"
#include "grace/kernels/kernels.h"

namespace grace::kernels {
namespace {

// Sum of squares in eight interleaved f64 sums, so that the additions of a row do not wait for one another.
double sum_of_squares(std::span<const float> x) {
  std::array<double, 8> lanes{};
  for (std::size_t i = 0; i < x.size(); ++i)
    lanes[i % 8] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

// Softmax over one row; probabilities: [E].
void softmax(std::span<const float> logits, std::span<float> probabilities) {
  const float largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (std::size_t e = 0; e < logits.size(); ++e) {
    probabilities[e] = std::exp(logits[e] - largest);
    sum += static_cast<double>(probabilities[e]);
  }
  for (float& p : probabilities) p = static_cast<float>(static_cast<double>(p) / sum);
}

// The K largest by repeated search: K is small, ties go to the lower id, and a NaN among the logits cannot
// break an ordering. allowed: [E, E], or empty and all are: with the first choice, who may come after it.
void choose_largest(std::span<const float> probabilities, std::span<const char> allowed,
                    std::span<std::uint16_t> ids, std::span<float> weights, std::vector<char>& taken) {
  taken.assign(probabilities.size(), 0);
  for (std::size_t k = 0; k < ids.size(); ++k) {
    std::size_t best = probabilities.size();
    for (std::size_t e = 0; e < probabilities.size(); ++e) {
      if (taken[e] == 0 && (best == probabilities.size() || probabilities[e] > probabilities[best])) best = e;
    }
    GRACE_CHECK(best < taken.size(), "fewer experts are allowed than a token chooses");
    taken[best] = 1;
    for (std::size_t e = 0; k == 0 && !allowed.empty() && e < taken.size(); ++e)
      if (allowed[best * taken.size() + e] == 0) taken[e] = 1;
    ids[k] = static_cast<std::uint16_t>(best);
    weights[k] = probabilities[best];
  }
}

}  // namespace

void rms_norm(std::span<const float> x, std::span<const float> scale, double eps, std::span<float> y) {
  const std::size_t n = scale.size();
  GRACE_CHECK(n > 0 && x.size() % n == 0 && y.size() == x.size(), "x and y are not [T, n]");
  for (std::size_t first = 0; first < x.size(); first += n) {
    const auto factor = static_cast<float>(
        1.0 / std::sqrt(sum_of_squares(x.subspan(first, n)) / static_cast<double>(n) + eps));
    for (std::size_t i = 0; i < n; ++i) y[first + i] = x[first + i] * factor * scale[i];
  }
}

void rope(std::span<float> x, int heads, int head_dim, std::span<const std::int32_t> positions,
          double theta) {
  const auto dim = static_cast<std::size_t>(head_dim);
  const std::size_t half = dim / 2;
  const std::size_t row = static_cast<std::size_t>(heads) * dim;
  GRACE_CHECK(head_dim % 2 == 0 && x.size() == positions.size() * row, "x is not [T, heads, even head_dim]");
  // Frequencies and angles are rounded to f32 as the published implementations round them: at far positions
  // that moves the angle visibly.
  std::vector<float> frequency(half);
  for (std::size_t i = 0; i < half; ++i) {
    frequency[i] =
        1.0F / static_cast<float>(std::pow(theta, static_cast<double>(2 * i) / static_cast<double>(dim)));
  }
  std::vector<float> cosine(half);
  std::vector<float> sine(half);
  for (std::size_t t = 0; t < positions.size(); ++t) {
    for (std::size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(positions[t]) * frequency[i];
      cosine[i] = std::cos(angle);
      sine[i] = std::sin(angle);
    }
    for (float* head = x.data() + t * row; head != x.data() + (t + 1) * row; head += dim) {
      for (std::size_t i = 0; i < half; ++i) {
        const float a = head[i];
        const float b = head[i + half];
        head[i] = a * cosine[i] - b * sine[i];
        head[i + half] = b * cosine[i] + a * sine[i];
      }
    }
  }
}

void gate(std::span<const float> logits, int num_experts, int experts_per_token, bool normalise,
          std::span<std::uint16_t> ids, std::span<float> weights) {
  gate_among(logits, num_experts, experts_per_token, normalise, {}, ids, weights);
}

void gate_among(std::span<const float> logits, int num_experts, int experts_per_token, bool normalise,
                std::span<const char> allowed, std::span<std::uint16_t> ids, std::span<float> weights) {
  const auto experts = static_cast<std::size_t>(num_experts);
  const auto top = static_cast<std::size_t>(experts_per_token);
  GRACE_CHECK(top > 0 && top <= experts && logits.size() % experts == 0,
              "logits are not [T, E], or K is outside [1, E]");
  GRACE_CHECK(allowed.empty() || allowed.size() == experts * experts, "allowed is not [E, E]");
  const std::size_t tokens = logits.size() / experts;
  GRACE_CHECK(ids.size() == tokens * top && weights.size() == tokens * top, "ids and weights are not [T, K]");
  std::vector<float> probabilities(experts);
  std::vector<char> taken;
  for (std::size_t t = 0; t < tokens; ++t) {
    softmax(logits.subspan(t * experts, experts), probabilities);
    const auto chosen = weights.subspan(t * top, top);
    choose_largest(probabilities, allowed, ids.subspan(t * top, top), chosen, taken);
    if (!normalise) continue;
    float sum = 0;
    for (const float w : chosen) sum += w;
    for (float& w : chosen) w /= sum;
  }
}

}  // namespace grace::kernels
