// A map of 64-bit keys in one array: filled once, then only asked.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace grace {

// Linear probing, at most half full. Thread-compatible; immutable and thread-safe once filled.
template <typename Value>
class FlatMap {
 public:
  static constexpr std::uint64_t kNoKey = ~std::uint64_t{0};

  FlatMap() : FlatMap(0) {}
  // Room for `count` keys; a later one fails a check.
  explicit FlatMap(std::size_t count)
      : slots_(std::bit_ceil(2 * count + 2)), shift_(64 - std::countr_zero(slots_.size())) {}

  // The value of `key`, made anew if there is none. REQUIRES: key is not kNoKey.
  Value& operator[](std::uint64_t key) {
    Slot& slot = slots_[place_of(key)];
    slot.key = key;
    return slot.value;
  }
  // null: no such key.
  const Value* find(std::uint64_t key) const {
    const Slot& slot = slots_[place_of(key)];
    return slot.key == key ? &slot.value : nullptr;
  }

 private:
  struct Slot {
    std::uint64_t key = kNoKey;
    Value value{};
  };
  std::size_t place_of(std::uint64_t key) const {
    constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;  // 2^64 over the golden ratio
    std::size_t place = static_cast<std::size_t>((key * kGolden) >> shift_);
    while (slots_[place].key != key && slots_[place].key != kNoKey) place = (place + 1) & (slots_.size() - 1);
    return place;
  }

  std::vector<Slot> slots_;
  int shift_;
};

}  // namespace grace
