// Vectors as they travel: f32, or rounded to bf16.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "grace/cost/cost.h"

namespace grace {

// To nearest, ties to even; a NaN stays one.
inline std::uint16_t rounded_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40;
  return static_cast<std::uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? nan : nearest);
}
inline float widened(std::uint16_t bf16) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bf16) << 16);
}

// to: [values.size() * bytes_per_value(wire)], of any alignment.
inline void put_values(Wire wire, std::span<const float> values, std::byte* to) {
  if (wire == Wire::kF32) {
    std::memcpy(to, values.data(), values.size_bytes());
    return;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t value = rounded_to_bf16(values[i]);
    std::memcpy(to + i * sizeof value, &value, sizeof value);
  }
}

inline void take_values(Wire wire, const std::byte* from, std::span<float> values) {
  if (wire == Wire::kF32) {
    std::memcpy(values.data(), from, values.size_bytes());
    return;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t value;
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    values[i] = widened(value);
  }
}

// What they are after a journey.
inline void round_values(Wire wire, std::span<float> values) {
  if (wire == Wire::kF32) return;
  for (float& value : values) value = widened(rounded_to_bf16(value));
}

}  // namespace grace
