#include "grace/kernels/cpu/tile.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace grace::kernels {
namespace {

constexpr int kLanes = 16;

// 8 rows x 2 vectors of sums: enough chains to hide the multiply-add's latency, and half of the 32 registers.
template <int kRows>
__attribute__((target("avx512f"))) void block(const float* x, std::size_t in, const float* panel,
                                              float* out) {
  __m512 sum[kRows][2];
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  for (std::size_t k = 0; k < in; ++k) {
    const __m512 w0 = _mm512_loadu_ps(panel + k * kPanel);
    const __m512 w1 = _mm512_loadu_ps(panel + k * kPanel + kLanes);
    for (int r = 0; r < kRows; ++r) {
      const __m512 value = _mm512_set1_ps(x[static_cast<std::size_t>(r) * in + k]);
      sum[r][0] = _mm512_fmadd_ps(value, w0, sum[r][0]);
      sum[r][1] = _mm512_fmadd_ps(value, w1, sum[r][1]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    _mm512_storeu_ps(out + std::ptrdiff_t{r} * kPanel, sum[r][0]);
    _mm512_storeu_ps(out + std::ptrdiff_t{r} * kPanel + kLanes, sum[r][1]);
  }
}

void run(const float* x, int rows, std::size_t in, const float* panel, float* out) {
  switch (rows) {
    case 8:
      return block<8>(x, in, panel, out);
    case 7:
      return block<7>(x, in, panel, out);
    case 6:
      return block<6>(x, in, panel, out);
    case 5:
      return block<5>(x, in, panel, out);
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

const Tile* avx512_tile() {
  static constexpr Tile kTile{"avx512", kMaxTileRows, &run};
  return __builtin_cpu_supports("avx512f") ? &kTile : nullptr;
}

}  // namespace grace::kernels
#else
namespace grace::kernels {
const Tile* avx512_tile() { return nullptr; }
}  // namespace grace::kernels
#endif
