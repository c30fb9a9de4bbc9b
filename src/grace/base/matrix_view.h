// A matrix that someone else holds, as a checkpoint has it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace grace {

enum class Element : std::uint8_t { kF32, kBf16, kF16 };
constexpr std::size_t bytes_of(Element element) { return element == Element::kF32 ? 4 : 2; }

// Row r, column c is element r * stride + c of `data`, or c * stride + r where it is stored transposed.
// `data` need not be aligned. Valid while its file lives.
struct MatrixView {
  int rows = 0;
  int cols = 0;
  Element element = Element::kF32;
  const std::byte* data = nullptr;
  std::int64_t stride = 0;  // in elements
  bool transposed = false;

  bool empty() const { return data == nullptr; }
};

}  // namespace grace
