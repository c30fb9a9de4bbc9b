#include "grace/planner/joint/popcount.h"

#include <bit>

#if defined(__x86_64__) && defined(__GNUC__)
// GCC 12's own header passes values that it leaves undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#define GRACE_WIDE_POPCOUNT 1
#endif

namespace grace::joint {
namespace {

std::int64_t plain_and(const std::uint64_t* a, const std::uint64_t* b, std::size_t words) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < words; ++i) sum += std::popcount(a[i] & b[i]);
  return sum;
}
std::int64_t plain_and_not(const std::uint64_t* a, const std::uint64_t* b, const std::uint64_t* c,
                           std::size_t words) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < words; ++i) sum += std::popcount(a[i] & b[i] & ~c[i]);
  return sum;
}

#ifdef GRACE_WIDE_POPCOUNT
#define GRACE_WIDE __attribute__((target("avx512f,avx512vpopcntdq")))
GRACE_WIDE __mmask8 lanes_below(std::size_t left) {
  return left >= 8 ? 0xff : static_cast<__mmask8>((1U << left) - 1);
}

GRACE_WIDE std::int64_t wide_and(const std::uint64_t* a, const std::uint64_t* b, std::size_t words) {
  __m512i sum = _mm512_setzero_si512();
  for (std::size_t i = 0; i < words; i += 8) {
    const __mmask8 lanes = lanes_below(words - i);
    const __m512i both =
        _mm512_and_si512(_mm512_maskz_loadu_epi64(lanes, a + i), _mm512_maskz_loadu_epi64(lanes, b + i));
    sum = _mm512_add_epi64(sum, _mm512_popcnt_epi64(both));
  }
  return _mm512_reduce_add_epi64(sum);
}
GRACE_WIDE std::int64_t wide_and_not(const std::uint64_t* a, const std::uint64_t* b, const std::uint64_t* c,
                                     std::size_t words) {
  __m512i sum = _mm512_setzero_si512();
  for (std::size_t i = 0; i < words; i += 8) {
    const __mmask8 lanes = lanes_below(words - i);
    const __m512i both =
        _mm512_and_si512(_mm512_maskz_loadu_epi64(lanes, a + i), _mm512_maskz_loadu_epi64(lanes, b + i));
    const __m512i left = _mm512_andnot_si512(_mm512_maskz_loadu_epi64(lanes, c + i), both);
    sum = _mm512_add_epi64(sum, _mm512_popcnt_epi64(left));
  }
  return _mm512_reduce_add_epi64(sum);
}
const bool kIsWide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vpopcntdq");
#endif

}  // namespace

std::int64_t count_and(const std::uint64_t* a, const std::uint64_t* b, std::size_t words) {
#ifdef GRACE_WIDE_POPCOUNT
  if (kIsWide) return wide_and(a, b, words);
#endif
  return plain_and(a, b, words);
}

std::int64_t count_and_not(const std::uint64_t* a, const std::uint64_t* b, const std::uint64_t* c,
                           std::size_t words) {
#ifdef GRACE_WIDE_POPCOUNT
  if (kIsWide) return wide_and_not(a, b, c, words);
#endif
  return plain_and_not(a, b, c, words);
}

}  // namespace grace::joint
