// Vectors that every compiler for x86-64 and arm64 knows, four floats wide.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace grace::kernels {
namespace {

struct PortableLanes {
  using Vector = float __attribute__((vector_size(16)));
  using Whole = std::int32_t __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;
  static constexpr int kRows = 4;  // x 2 vectors of sums fit sixteen registers
  static constexpr int kWidenedRows = 3;
  static constexpr int kMostPanels = 1;

  static Vector zero() { return Vector{}; }
  static Vector load(const float* from) {
    Vector v;
    std::memcpy(&v, from, sizeof v);
    return v;
  }
  static void store(float* to, Vector v) { std::memcpy(to, &v, sizeof v); }
  static Vector broadcast(const float* from) { return set(*from); }
  static Vector set(float value) { return Vector{value, value, value, value}; }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return a * b + c; }
  static Vector add(Vector a, Vector b) { return a + b; }
  static Vector sub(Vector a, Vector b) { return a - b; }
  static Vector mul(Vector a, Vector b) { return a * b; }
  static Vector div(Vector a, Vector b) { return a / b; }
  static Vector min(Vector a, Vector b) { return a < b ? a : b; }
  static Vector max(Vector a, Vector b) { return a > b ? a : b; }
  // Halves upon halves: lane i and lane i + half, until one is left.
  static float sum(Vector v) { return (v[0] + v[2]) + (v[1] + v[3]); }
  static float largest(Vector v) {
    const float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
  }
  static Vector widen_even(const std::byte* pairs) {
    Whole w;
    std::memcpy(&w, pairs, sizeof w);
    return as_floats(w << 16);
  }
  static Vector widen_odd(const std::byte* pairs) {
    Whole w;
    std::memcpy(&w, pairs, sizeof w);
    return as_floats(w & static_cast<std::int32_t>(0xffff0000U));
  }
  static Vector load_bf16(const std::uint16_t* from) {
    const Whole w = {from[0], from[1], from[2], from[3]};
    return as_floats(w << 16);
  }
  // 2^n for whole n in [-126, 127].
  static Vector power_of_two(Vector n) { return as_floats((__builtin_convertvector(n, Whole) + 127) << 23); }
  static Vector round(Vector v) {
    const Vector magic = set(12582912.0F);  // 1.5 * 2^23: what is below its last place is rounded away
    return (v + magic) - magic;
  }

 private:
  static Vector as_floats(Whole w) {
    Vector v;
    std::memcpy(&v, &w, sizeof v);
    return v;
  }
};

}  // namespace
}  // namespace grace::kernels
