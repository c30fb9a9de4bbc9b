// Eight floats. Included after the target is set.
struct Avx2Lanes {
  using Vector = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kRows = 6;  // x 2 vectors of sums, 2 of weights and 1 of x are 15 of the 16 registers
  static constexpr int kWidenedRows = 5;  // 4 of weights
  static constexpr int kMostPanels = 1;

  static Vector zero() { return _mm256_setzero_ps(); }
  static Vector load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, Vector v) { _mm256_storeu_ps(to, v); }
  static Vector broadcast(const float* from) { return _mm256_broadcast_ss(from); }
  static Vector set(float value) { return _mm256_set1_ps(value); }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
  static Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  static Vector sub(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
  static Vector mul(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
  static Vector div(Vector a, Vector b) { return _mm256_div_ps(a, b); }
  static Vector min(Vector a, Vector b) { return _mm256_min_ps(a, b); }
  static Vector max(Vector a, Vector b) { return _mm256_max_ps(a, b); }
  // Halves upon halves: lane i and lane i + half, until one is left.
  static float sum(Vector v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float largest(Vector v) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }
  static Vector widen_even(const std::byte* pairs) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs)), 16));
  }
  static Vector widen_odd(const std::byte* pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs)),
                                                _mm256_set1_epi32(static_cast<int>(0xffff0000U))));
  }
  static Vector load_bf16(const std::uint16_t* from) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  static Vector power_of_two(Vector n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  }
  static Vector round(Vector v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
};
