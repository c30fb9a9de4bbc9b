// Ids of short words that have just been encoded: text repeats itself.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace grace {

// A word has one place and takes it from whoever was there. Thread-compatible.
class WordCache {
 public:
  // Forgets everything and makes room as a text of so many bytes is worth it; a short one gets none.
  void start(std::size_t text_bytes);

  // Appends the ids of `word` if they are here.
  bool find(std::string_view word, std::vector<std::int32_t>& ids) const {
    if (word.size() > kMaxBytes || entries_.empty()) return false;
    const Entry& entry = entries_[place_of(word)];
    if (entry.size != word.size() || std::memcmp(entry.word.data(), word.data(), word.size()) != 0)
      return false;
    ids.insert(ids.end(), entry.ids.begin(), entry.ids.begin() + entry.num_ids);
    return true;
  }
  void store(std::string_view word, std::span<const std::int32_t> ids) {
    if (word.size() > kMaxBytes || ids.size() > kMaxIds || entries_.empty()) return;
    Entry& entry = entries_[place_of(word)];
    entry.size = static_cast<std::uint8_t>(word.size());
    entry.num_ids = static_cast<std::uint8_t>(ids.size());
    std::memcpy(entry.word.data(), word.data(), word.size());
    std::ranges::copy(ids, entry.ids.begin());  // perhaps none, from nowhere
  }

 private:
  static constexpr std::size_t kMaxBytes = 30;
  static constexpr std::size_t kMaxIds = 8;
  struct alignas(64) Entry {  // one cache line
    std::uint8_t size = 0;    // no word is empty
    std::uint8_t num_ids = 0;
    std::array<char, kMaxBytes> word;
    std::array<std::int32_t, kMaxIds> ids;
  };
  std::size_t place_of(std::string_view word) const;

  std::vector<Entry> entries_;  // a power of two, or none
  int shift_ = 0;
};

}  // namespace grace
