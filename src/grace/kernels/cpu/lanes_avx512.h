// Sixteen floats. Included after the target is set.
struct Avx512Lanes {
  using Vector = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kRows = 12;  // x 2 vectors of sums: 24 chains hide the latency, and leave 8 registers
  static constexpr int kWidenedRows = 12;
  static constexpr int kMostPanels = 4;

  static Vector zero() { return _mm512_setzero_ps(); }
  static Vector load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Vector v) { _mm512_storeu_ps(to, v); }
  static Vector broadcast(const float* from) { return _mm512_set1_ps(*from); }
  static Vector set(float value) { return _mm512_set1_ps(value); }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  static Vector sub(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
  static Vector mul(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
  static Vector div(Vector a, Vector b) { return _mm512_div_ps(a, b); }
  static Vector min(Vector a, Vector b) { return _mm512_min_ps(a, b); }
  static Vector max(Vector a, Vector b) { return _mm512_max_ps(a, b); }
  // Halves upon halves: lane i and lane i + half, until one is left.
  static float sum(Vector v) {
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float largest(Vector v) {
    const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }
  static Vector widen_even(const std::byte* pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(pairs), 16));
  }
  static Vector widen_odd(const std::byte* pairs) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_loadu_si512(pairs), _mm512_set1_epi32(static_cast<int>(0xffff0000U))));
  }
  static Vector load_bf16(const std::uint16_t* from) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  static Vector power_of_two(Vector n) {
    const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
  }
  static Vector round(Vector v) {
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
};
