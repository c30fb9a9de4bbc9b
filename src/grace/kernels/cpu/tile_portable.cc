#include <cstring>

#include "grace/kernels/cpu/tile.h"

namespace grace::kernels {
namespace {

// Four lanes are what every x86-64 and arm64 has; said outright, because loops over small arrays are not
// reliably turned into them.
using Lanes = float __attribute__((vector_size(16)));
constexpr int kLanes = 4;
// Eight columns at a time: 4 rows x 2 vectors of sums fit sixteen registers.
constexpr int kColumns = 2 * kLanes;

Lanes load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

template <int kRows>
void block(const float* x, std::size_t in, const float* panel, float* out) {
  for (int first = 0; first < kPanel; first += kColumns) {
    Lanes sum[kRows][2] = {};
    for (std::size_t k = 0; k < in; ++k) {
      const Lanes w0 = load(panel + k * kPanel + first);
      const Lanes w1 = load(panel + k * kPanel + first + kLanes);
      for (int r = 0; r < kRows; ++r) {
        const float value = x[static_cast<std::size_t>(r) * in + k];
        sum[r][0] += value * w0;
        sum[r][1] += value * w1;
      }
    }
    for (int r = 0; r < kRows; ++r)
      std::memcpy(out + std::ptrdiff_t{r} * kPanel + first, sum[r], sizeof sum[r]);
  }
}

void run(const float* x, int rows, std::size_t in, const float* panel, float* out) {
  switch (rows) {
    case 4:
      return block<4>(x, in, panel, out);
    case 3:
      return block<3>(x, in, panel, out);
    case 2:
      return block<2>(x, in, panel, out);
    default:
      return block<1>(x, in, panel, out);
  }
}

}  // namespace

const Tile& portable_tile() {
  static constexpr Tile kTile{"portable", 4, &run};
  return kTile;
}

}  // namespace grace::kernels
