// bfloat16: the upper half of an f32.
#pragma once

#include <bit>
#include <cstdint>

namespace grace {

inline float f32_of_bf16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

// To nearest, ties to even. Without a branch, so that loops over it are vectorised.
inline std::uint16_t bf16_of_f32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t nearest = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  // The quiet bit keeps a NaN whose payload is cut off from becoming an infinity.
  const std::uint32_t nan = (bits >> 16) | 0x40U;
  return static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? nan : nearest);
}

}  // namespace grace
