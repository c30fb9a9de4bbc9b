// Byte-pair encoding: a word's code points, merged pair by pair in the order that training found.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grace/base/result.h"
#include "grace/files/json.h"
#include "grace/text/flat_map.h"
#include "grace/text/word_cache.h"

namespace grace {

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

// Immutable, thread-safe.
class Bpe {
 public:
  // Working memory of encode. Thread-compatible.
  struct Scratch {
    struct Symbol {
      std::int32_t id;  // kGone once merged into its left neighbour
      std::int32_t previous;
      std::int32_t next;
    };
    // A merge that was possible when it was found.
    struct Candidate {
      std::int32_t rank;
      std::int32_t position;
      std::int32_t merged_id;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    std::string spelled;
    WordCache cache;  // of encode_bytes; another model needs another scratch
  };

  // `model` is the object of type BPE. Errors: invalid_input (ids outside [0, 2^31 - 2] or used twice, merges
  // of unknown tokens); unsupported, naming it: another type, byte_fallback, dropout,
  // continuing_subword_prefix, end_of_word_suffix.
  static Result<Bpe> parse(const Json& model, std::string_view place);

  // Appends the ids of `word`. A code point that the vocabulary lacks becomes the unknown token, or nothing
  // where there is none. O(n log n) in the word's length. REQUIRES: word is UTF-8.
  void encode(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const;

  // The same for the byte-level spelling of `word`, which may be any bytes.
  void encode_bytes(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const;

  std::int32_t id_of(std::string_view token) const;  // -1: none
  const std::unordered_map<std::string, std::int32_t, StringHash, std::equal_to<>>& vocabulary() const {
    return vocabulary_;
  }

 private:
  struct Merge {
    std::int32_t rank;
    std::int32_t merged_id;
  };
  Status read_vocabulary(const Json& model, std::string_view place);
  Status read_merges(const Json& model, std::string_view place);
  void find_bytes();
  void split_symbols(std::string_view word, Scratch& scratch) const;
  void merge_all(Scratch& scratch) const;
  void append_symbols(const Scratch& scratch, std::vector<std::int32_t>& ids) const;
  void encode_short(std::string_view word, std::vector<std::int32_t>& ids) const;
  void encode_new(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const;
  const Merge* find_merge(std::int32_t left, std::int32_t right) const {
    return merges_.find(pair_key(left, right));
  }
  static std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
  }
  void push_candidate(std::int32_t position, Scratch& scratch) const;

  std::unordered_map<std::string, std::int32_t, StringHash, std::equal_to<>> vocabulary_;
  FlatMap<Merge> merges_;                       // key: left id * 2^32 + right id
  std::array<std::int32_t, 256> id_of_byte_{};  // -1: the vocabulary lacks its spelling
  std::int32_t unknown_id_ = -1;
  bool fuse_unknown_ = false;
  bool ignore_merges_ = false;
};

}  // namespace grace
