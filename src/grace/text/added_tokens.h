// Added tokens: spellings that are recognised in the text before anything else happens to it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "grace/base/result.h"
#include "grace/files/json.h"
#include "grace/text/bpe.h"
#include "grace/text/normalizer.h"
#include "grace/text/regex.h"

namespace grace {

struct AddedToken {
  std::int32_t id = -1;
  std::string content;
  std::string spelling;      // what it is decoded to: as the reference does, normalised where `normalized`
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // swallows the white space before it
  bool rstrip = false;       // swallows the white space behind it
  bool normalized = false;   // sought, in its normalised spelling, in the normalised text
  bool special = false;
};

// Finds the spellings of some added tokens: leftmost, of those the longest. Immutable, thread-safe.
class AddedTokenMatcher {
 public:
  struct Piece {
    ByteRange range;
    std::int32_t id;  // kPlainText, or the token found there
  };
  static constexpr std::int32_t kPlainText = -1;

  AddedTokenMatcher();
  // Of two equal patterns the first counts. `token` must outlive this object. REQUIRES: pattern is not empty.
  void add(std::string_view pattern, const AddedToken& token);
  // Pieces of `text` from left to right. REQUIRES: text is UTF-8.
  std::vector<Piece> split(std::string_view text) const;

 private:
  struct Found {
    const AddedToken* token;  // null: nothing starts here
    std::size_t end;
  };
  Found longest_at(std::string_view text, std::size_t at) const;

  std::vector<const AddedToken*> token_of_node_;             // a trie over bytes; node 0 is its root
  std::unordered_map<std::uint64_t, std::size_t> children_;  // key: node * 256 + byte
  std::array<bool, 256> starts_{};
};

// Immutable, thread-safe.
class AddedTokens {
 public:
  // `list` is the field added_tokens, or null. Errors: invalid_input, also for an id that is not the one the
  // reference would give: the model's own, or the next one free; unsupported for a token of which the
  // normaliser leaves nothing.
  static Result<AddedTokens> parse(const Json& list, const Bpe& model, const Normalizer& normalizer,
                                   std::string_view place);

  AddedTokens() = default;
  AddedTokens(AddedTokens&&) noexcept = default;  // a copy's matchers would point into the original
  AddedTokens& operator=(AddedTokens&&) noexcept = default;

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  const AddedTokenMatcher& raw_matcher() const { return raw_matcher_; }  // in the text as it came
  const AddedTokenMatcher& normalized_matcher() const { return normalized_matcher_; }  // in normalised text
  std::int32_t id_of(std::string_view token) const;                                    // -1: none
  // `token` as the file has it.
  bool is_special(std::string_view token) const { return special_.contains(token); }

 private:
  Status check_ids(const Bpe& model, std::string_view place);
  Status build_matchers(const Normalizer& normalizer, std::string_view place);  // and spellings

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, std::int32_t, StringHash, std::equal_to<>> ids_;
  std::unordered_set<std::string, StringHash, std::equal_to<>> special_;
  AddedTokenMatcher raw_matcher_;
  AddedTokenMatcher normalized_matcher_;
};

}  // namespace grace
