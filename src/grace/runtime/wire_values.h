// Vectors as they travel: f32, or rounded to bf16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "grace/base/bf16.h"
#include "grace/cost/cost.h"

namespace grace {

// to: [values.size() * bytes_per_value(wire)], of any alignment.
inline void put_values(Wire wire, std::span<const float> values, std::byte* to) {
  if (wire == Wire::kF32) {
    std::memcpy(to, values.data(), values.size_bytes());
    return;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t value = bf16_of_f32(values[i]);
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
    values[i] = f32_of_bf16(value);
  }
}

// What they are after a journey.
inline void round_values(Wire wire, std::span<float> values) {
  if (wire == Wire::kF32) return;
  for (float& value : values) value = f32_of_bf16(bf16_of_f32(value));
}

}  // namespace grace
