#include "grace/kernels/cpu/tile.h"

namespace grace::kernels {
namespace {

// Eight columns at a time: rows x 8 sums fit the sixteen registers that every x86-64 has.
constexpr int kColumns = 8;

template <int kRows>
void block(const float* x, std::size_t in, const float* panel, float* out) {
  for (int first = 0; first < kPanel; first += kColumns) {
    float sum[kRows][kColumns] = {};
    for (std::size_t k = 0; k < in; ++k) {
      const float* w = panel + k * kPanel + first;
      for (int r = 0; r < kRows; ++r) {
        const float value = x[static_cast<std::size_t>(r) * in + k];
        for (int c = 0; c < kColumns; ++c) sum[r][c] += value * w[c];
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kColumns; ++c) out[r * kPanel + first + c] = sum[r][c];
    }
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
