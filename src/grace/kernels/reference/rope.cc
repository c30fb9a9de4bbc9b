#include "grace/kernels/rope.h"

#include <cmath>

namespace grace::kernels::reference {

void rope(std::span<float> x, int heads, int head_dim, std::span<const std::int32_t> positions,
          const RotaryTable& table) {
  const auto dim = static_cast<std::size_t>(head_dim), all = static_cast<std::size_t>(heads);
  const std::size_t pairs = table.frequencies.size();
  for (std::size_t t = 0; t < positions.size(); ++t) {
    for (std::size_t h = 0; h < all; ++h) {
      float* rotated = x.data() + (t * all + h) * dim + dim - 2 * pairs;
      for (std::size_t i = 0; i < pairs; ++i) {
        float& first = rotated[table.interleaved ? 2 * i : i];
        float& second = rotated[table.interleaved ? 2 * i + 1 : i + pairs];
        const double angle = positions[t] * double{table.frequencies[i]};
        const double a = double{first} * double{table.amplitude},
                     b = double{second} * double{table.amplitude};
        first = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
        second = static_cast<float>(b * std::cos(angle) + a * std::sin(angle));
      }
    }
  }
}

}  // namespace grace::kernels::reference
