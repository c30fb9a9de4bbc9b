#include "grace/kernels/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "grace/base/check.h"
#include "grace/kernels/cpu/shares.h"

namespace grace::kernels {
namespace {

// theta^(2i / dim), in f32 as the published implementations have it: at far positions the rounding of a
// frequency moves the angle visibly.
std::vector<float> wavelengths(int dim, double theta) {
  GRACE_CHECK(dim > 0 && dim % 2 == 0, "a rotary dimension is even");
  std::vector<float> lengths(static_cast<std::size_t>(dim) / 2);
  for (std::size_t i = 0; i < lengths.size(); ++i)
    lengths[i] = static_cast<float>(std::pow(theta, static_cast<double>(2 * i) / dim));
  return lengths;
}

// The dimension that turns `turns` times in the original positions.
double dimension_of(double turns, int dim, double theta, int positions) {
  return dim * std::log(positions / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

}  // namespace

RotaryTable plain_rotary(int dim, double theta) {
  RotaryTable table;
  for (const float length : wavelengths(dim, theta)) table.frequencies.push_back(1.0F / length);
  return table;
}

RotaryTable yarn_rotary(int dim, double theta, const YarnScaling& scaling) {
  double low = dimension_of(scaling.beta_fast, dim, theta, scaling.original_positions);
  double high = dimension_of(scaling.beta_slow, dim, theta, scaling.original_positions);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;  // a step in place of a ramp
  RotaryTable table;
  const auto factor = static_cast<float>(scaling.factor);
  for (const float length : wavelengths(dim, theta)) {
    const auto i = static_cast<float>(table.frequencies.size());
    // As the published code rounds it: 1 - (1 - slowed) is not always slowed.
    const float slowed =
        std::clamp((i - static_cast<float>(low)) / static_cast<float>(high - low), 0.0F, 1.0F);
    const float kept = 1.0F - slowed;
    table.frequencies.push_back(1.0F / (factor * length) * (1.0F - kept) + 1.0F / length * kept);
  }
  return table;
}

void turn_to(std::span<const std::int32_t> positions, const RotaryTable& table, Rotations& rotations) {
  rotations.pairs = table.frequencies.size();
  rotations.interleaved = table.interleaved;
  rotations.cosine.resize(positions.size() * rotations.pairs);
  rotations.sine.resize(rotations.cosine.size());
  for (std::size_t t = 0; t < positions.size(); ++t) {
    for (std::size_t i = 0; i < rotations.pairs; ++i) {
      const float angle = static_cast<float>(positions[t]) * table.frequencies[i];
      rotations.cosine[t * rotations.pairs + i] = std::cos(angle) * table.amplitude;
      rotations.sine[t * rotations.pairs + i] = std::sin(angle) * table.amplitude;
    }
  }
}

void rope(std::span<float> x, int heads, int head_dim, const Rotations& rotations, ThreadPool& pool) {
  const auto dim = static_cast<std::size_t>(head_dim);
  const std::size_t row = static_cast<std::size_t>(heads) * dim, pairs = rotations.pairs;
  GRACE_CHECK(pairs > 0 && 2 * pairs <= dim && x.size() / row * pairs == rotations.cosine.size(),
              "x is not [T, heads, head_dim] of the tokens turned");
  // The second of pair i is `apart` behind the first, which is `step` * i behind the begin.
  const std::size_t step = rotations.interleaved ? 2 : 1, apart = rotations.interleaved ? 1 : pairs;
  for_each_share(x.size() / row, row, pool, [&](std::size_t first, std::size_t last) {
    for (std::size_t t = first; t < last; ++t) {
      const float* cosine = rotations.cosine.data() + t * pairs;
      const float* sine = rotations.sine.data() + t * pairs;
      for (std::size_t head = 0; head < row; head += dim) {
        float* rotated = x.data() + t * row + head + dim - 2 * pairs;
        for (std::size_t i = 0; i < pairs; ++i) {
          const float a = rotated[i * step], b = rotated[i * step + apart];
          rotated[i * step] = a * cosine[i] - b * sine[i];
          rotated[i * step + apart] = b * cosine[i] + a * sine[i];
        }
      }
    }
  });
}

}  // namespace grace::kernels
