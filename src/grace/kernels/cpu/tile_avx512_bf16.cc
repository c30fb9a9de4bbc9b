#include "grace/kernels/cpu/tile.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(                                                                     \
    __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vnni"))), \
    apply_to = function)
#else
#pragma GCC push_options
// GCC 12 takes the undefined operands inside its own intrinsics for ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vnni")
#endif

namespace grace::kernels {
namespace {

#include "grace/kernels/cpu/block_body.inc"
#include "grace/kernels/cpu/lanes_avx512.inc"

// Pairs of bf16: both products are added to the sum by one instruction.
struct Bf16ByBf16 {
  using Lanes = Avx512Lanes;
  using Sum = __m512;
  static constexpr std::size_t kOperandBytes = 4;
  static constexpr int kRows = 12;
  static Sum zero() { return _mm512_setzero_ps(); }
  static void store(float* to, Sum sum) { _mm512_storeu_ps(to, sum); }
  template <int R, int V>
  __attribute__((always_inline)) static inline void step(Sum (&sums)[R][V], const std::byte* x,
                                                         std::size_t stride, const std::byte* (&w)[V]) {
    __m512bh weight[V];
    for (int v = 0; v < V; ++v) __builtin_memcpy(&weight[v], w[v], sizeof weight[v]);
    for (int r = 0; r < R; ++r) {
      const __m512i two =
          _mm512_set1_epi32(*reinterpret_cast<const int*>(x + static_cast<std::size_t>(r) * stride));
      __m512bh pair;
      __builtin_memcpy(&pair, &two, sizeof pair);
      for (int v = 0; v < V; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], pair, weight[v]);
    }
  }
};

struct U8ByInt8 {
  using Lanes = Avx512Lanes;
  using Sum = __m512i;
  static constexpr std::size_t kOperandBytes = 4;
  static constexpr int kRows = 12;
  static Sum zero() { return _mm512_setzero_si512(); }
  static void store(float* to, Sum sum) { _mm512_storeu_si512(to, sum); }
  template <int R, int V>
  __attribute__((always_inline)) static inline void step(Sum (&sums)[R][V], const std::byte* x,
                                                         std::size_t stride, const std::byte* (&w)[V]) {
    __m512i weight[V];
    for (int v = 0; v < V; ++v) weight[v] = _mm512_loadu_si512(w[v]);
    for (int r = 0; r < R; ++r) {
      const __m512i four =
          _mm512_set1_epi32(*reinterpret_cast<const int*>(x + static_cast<std::size_t>(r) * stride));
      for (int v = 0; v < V; ++v) sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], four, weight[v]);
    }
  }
};

}  // namespace

const TileSet& avx512_bf16_tiles() {
  static const TileSet kSet{avx512_tiles().f32_by_f32, avx512_tiles().f32_by_bf16,
                            tiles_of<Bf16ByBf16>(Operand::kBf16), tiles_of<U8ByInt8>(Operand::kU8)};
  return kSet;
}

}  // namespace grace::kernels
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
namespace grace::kernels {
const TileSet& avx512_bf16_tiles() { return portable_tiles(); }
}  // namespace grace::kernels
#endif
