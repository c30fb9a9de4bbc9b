#include "grace/kernels/cpu/tile.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace grace::kernels {
namespace {

// Half a panel at a time: 6 rows x 2 vectors of sums, 2 of weights and 1 of x are 15 of the 16 registers.
constexpr int kColumns = 16;
constexpr int kLanes = 8;

template <int kRows>
__attribute__((target("avx2,fma"))) void block(const float* x, std::size_t in, const float* panel,
                                               float* out) {
  for (int first = 0; first < kPanel; first += kColumns) {
    __m256 sum[kRows][2];
    for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
    for (std::size_t k = 0; k < in; ++k) {
      const float* w = panel + k * kPanel + first;
      const __m256 w0 = _mm256_loadu_ps(w);
      const __m256 w1 = _mm256_loadu_ps(w + kLanes);
      for (int r = 0; r < kRows; ++r) {
        const __m256 value = _mm256_set1_ps(x[static_cast<std::size_t>(r) * in + k]);
        sum[r][0] = _mm256_fmadd_ps(value, w0, sum[r][0]);
        sum[r][1] = _mm256_fmadd_ps(value, w1, sum[r][1]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      _mm256_storeu_ps(out + std::ptrdiff_t{r} * kPanel + first, sum[r][0]);
      _mm256_storeu_ps(out + std::ptrdiff_t{r} * kPanel + first + kLanes, sum[r][1]);
    }
  }
}

void run(const float* x, int rows, std::size_t in, const float* panel, float* out) {
  switch (rows) {
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

const Tile* avx2_tile() {
  static constexpr Tile kTile{"avx2", 6, &run};
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kTile : nullptr;
}

}  // namespace grace::kernels
#else
namespace grace::kernels {
const Tile* avx2_tile() { return nullptr; }
}  // namespace grace::kernels
#endif
