// FNV-1a, 64 bits: tells things apart, and keeps nobody out.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace grace {

class Fnv1a {
 public:
  Fnv1a& add(std::span<const std::byte> bytes) {
    for (const std::byte b : bytes) feed(std::to_integer<std::uint64_t>(b));
    return *this;
  }
  // And its length, so that texts one behind the other do not run together.
  Fnv1a& add(std::string_view text) {
    return add(std::as_bytes(std::span(text.data(), text.size()))).add_int(text.size());
  }
  // The low `bytes` bytes of the number, lowest first.
  Fnv1a& add_int(std::uint64_t number, int bytes = 8) {
    for (int i = 0; i < bytes; ++i) feed(number >> (8 * i) & 0xff);
    return *this;
  }
  // 16 hex digits.
  std::string text() const { return fmt::format("{:016x}", value_); }

 private:
  void feed(std::uint64_t byte) { value_ = (value_ ^ byte) * 0x100000001b3ULL; }
  std::uint64_t value_ = 0xcbf29ce484222325ULL;
};

}  // namespace grace
