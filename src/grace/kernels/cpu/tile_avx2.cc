#include "grace/kernels/cpu/lanes_portable.h"
#include "grace/kernels/cpu/tile.h"
#include "grace/kernels/cpu/vector_functions.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
// GCC 12 takes the undefined operands inside its own intrinsics for ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC target("avx2,fma")
#endif

namespace grace::kernels {
namespace {

#include "grace/kernels/cpu/attention_body.inc"
#include "grace/kernels/cpu/block_body.inc"
#include "grace/kernels/cpu/lanes_avx2.inc"
#include "grace/kernels/cpu/vector_body.inc"

// Four products of a byte of x and one of the weight: as 16-bit numbers, even and odd bytes apart, since the
// instruction for bytes saturates.
struct U8ByInt8 {
  using Lanes = Avx2Lanes;
  using Sum = __m256i;
  static constexpr std::size_t kOperandBytes = 4;
  static constexpr int kRows = 4;
  static Sum zero() { return _mm256_setzero_si256(); }
  static void store(float* to, Sum sum) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), sum); }
  template <int R, int V>
  __attribute__((always_inline)) static inline void step(Sum (&sums)[R][V], const std::byte* x,
                                                         std::size_t stride, const std::byte* (&w)[V]) {
    for (int v = 0; v < V; ++v) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w[v]));
      const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
      const __m256i odd = _mm256_srai_epi16(bytes, 8);
      for (int r = 0; r < R; ++r) {
        const __m256i values = _mm256_castps_si256(
            _mm256_broadcast_ss(reinterpret_cast<const float*>(x + static_cast<std::size_t>(r) * stride)));
        const __m256i x_even = _mm256_and_si256(values, _mm256_set1_epi16(0xff));
        const __m256i x_odd = _mm256_srli_epi16(values, 8);
        sums[r][v] = _mm256_add_epi32(sums[r][v], _mm256_madd_epi16(even, x_even));
        sums[r][v] = _mm256_add_epi32(sums[r][v], _mm256_madd_epi16(odd, x_odd));
      }
    }
  }
};

}  // namespace

const TileSet& avx2_tiles() {
  static constexpr TileSet kSet{tiles_of<F32ByF32<Avx2Lanes>>(Operand::kF32),
                                tiles_of<F32ByBf16<Avx2Lanes>>(Operand::kF32),
                                {},
                                tiles_of<U8ByInt8>(Operand::kU8)};
  return kSet;
}

const VectorFunctions& avx2_functions() {
  static constexpr VectorFunctions kFunctions = functions_of<Avx2Lanes>();
  return kFunctions;
}

}  // namespace grace::kernels
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
namespace grace::kernels {
const TileSet& avx2_tiles() { return portable_tiles(); }
const VectorFunctions& avx2_functions() { return portable_functions(); }
}  // namespace grace::kernels
#endif
