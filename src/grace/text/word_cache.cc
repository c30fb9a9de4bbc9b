#include "grace/text/word_cache.h"

#include <algorithm>
#include <bit>

namespace grace {
namespace {

constexpr std::size_t kLeastTextBytes = 2048;
constexpr std::size_t kBytesPerEntry = 32;             // of text; a word in seven or so is new
constexpr std::size_t kMostEntries = 1 << 14;          // 1 MiB, which stays in a core's own cache
constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;  // 2^64 over the golden ratio

template <typename T>
std::uint64_t load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

}  // namespace

void WordCache::start(std::size_t text_bytes) {
  entries_.clear();
  if (text_bytes < kLeastTextBytes) return;
  entries_.resize(std::min(std::bit_ceil(text_bytes / kBytesPerEntry), kMostEntries));
  shift_ = 64 - std::countr_zero(entries_.size());
}

// Short words in whole, of long ones the beginning, the end and the middle.
std::size_t WordCache::place_of(std::string_view word) const {
  const char* begin = word.data();
  const std::size_t size = word.size();
  std::uint64_t mixed = size;
  const auto mix = [&mixed](std::uint64_t value) { mixed = (std::rotl(mixed, 23) ^ value) * kGolden; };
  if (size >= 8) {
    mix(load<std::uint64_t>(begin));
    mix(load<std::uint64_t>(begin + size - 8));
    if (size > 16) mix(load<std::uint64_t>(begin + 8));
  } else if (size >= 4) {
    mix(load<std::uint32_t>(begin) | load<std::uint32_t>(begin + size - 4) << 32);
  } else if (size > 0) {
    mix(load<std::uint8_t>(begin) | load<std::uint8_t>(begin + size / 2) << 8 |
        load<std::uint8_t>(begin + size - 1) << 16);
  }
  return static_cast<std::size_t>(mixed >> shift_);
}

}  // namespace grace
