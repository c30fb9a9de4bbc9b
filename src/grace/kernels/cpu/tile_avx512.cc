#include "grace/kernels/cpu/lanes_portable.h"
#include "grace/kernels/cpu/tile.h"
#include "grace/kernels/cpu/vector_functions.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"))), \
                             apply_to = function)
#else
#pragma GCC push_options
// GCC 12 takes the undefined operands inside its own intrinsics for ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")
#endif

namespace grace::kernels {
namespace {

#include "grace/kernels/cpu/attention_body.inc"
#include "grace/kernels/cpu/block_body.inc"
#include "grace/kernels/cpu/lanes_avx512.inc"
#include "grace/kernels/cpu/vector_body.inc"

// As in avx2: even and odd bytes apart, as 16-bit numbers.
struct U8ByInt8 {
  using Lanes = Avx512Lanes;
  using Sum = __m512i;
  static constexpr std::size_t kOperandBytes = 4;
  static constexpr int kRows = 8;
  static Sum zero() { return _mm512_setzero_si512(); }
  static void store(float* to, Sum sum) { _mm512_storeu_si512(to, sum); }
  template <int R, int V>
  __attribute__((always_inline)) static inline void step(Sum (&sums)[R][V], const std::byte* x,
                                                         std::size_t stride, const std::byte* (&w)[V]) {
    for (int v = 0; v < V; ++v) {
      const __m512i bytes = _mm512_loadu_si512(w[v]);
      const __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8);
      const __m512i odd = _mm512_srai_epi16(bytes, 8);
      for (int r = 0; r < R; ++r) {
        const __m512i values =
            _mm512_set1_epi32(*reinterpret_cast<const int*>(x + static_cast<std::size_t>(r) * stride));
        const __m512i x_even = _mm512_and_si512(values, _mm512_set1_epi16(0xff));
        const __m512i x_odd = _mm512_srli_epi16(values, 8);
        sums[r][v] = _mm512_add_epi32(sums[r][v], _mm512_madd_epi16(even, x_even));
        sums[r][v] = _mm512_add_epi32(sums[r][v], _mm512_madd_epi16(odd, x_odd));
      }
    }
  }
};

}  // namespace

const TileSet& avx512_tiles() {
  static constexpr TileSet kSet{tiles_of<F32ByF32<Avx512Lanes>>(Operand::kF32),
                                tiles_of<F32ByBf16<Avx512Lanes>>(Operand::kF32),
                                {},
                                tiles_of<U8ByInt8>(Operand::kU8)};
  return kSet;
}

const VectorFunctions& avx512_functions() {
  static constexpr VectorFunctions kFunctions = functions_of<Avx512Lanes>();
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
const TileSet& avx512_tiles() { return portable_tiles(); }
const VectorFunctions& avx512_functions() { return portable_functions(); }
}  // namespace grace::kernels
#endif
