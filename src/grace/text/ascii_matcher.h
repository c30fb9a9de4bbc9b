// The patterns that tokenizers are published with, matched by hand where the text is ASCII.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "grace/base/result.h"

namespace grace {

// Alternatives of sequences of sets, each with a quantifier: `'s| ?\p{L}+|\s+(?!\S)`. Knows of each set only
// which ASCII characters are in it, so that it gives up wherever another one would have to be looked at.
// Immutable, thread-safe.
class AsciiMatcher {
 public:
  // Which ASCII characters a pattern of one character matches.
  using AsciiSet = std::array<bool, 128>;
  using SetOf = std::function<Result<AsciiSet>(std::string_view pattern)>;

  // nullopt for a pattern in any other form, or one that may match nothing. `pattern` is in Oniguruma's
  // syntax, matched with line anchors that know \n.
  static std::optional<AsciiMatcher> compile(std::string_view pattern, const SetOf& set_of);

  struct Answer {
    enum class Kind { kMatch, kNoMatch, kUnknown } kind;
    std::size_t begin;  // kMatch: the match's; kUnknown: nothing matches before it
    std::size_t end;
  };
  // The leftmost match that begins at `at` or later. REQUIRES: at <= text.size().
  Answer search(std::string_view text, std::size_t at) const;

 private:
  struct Item {
    enum class Kind { kSet, kLineEnd, kNoneAhead } kind = Kind::kSet;
    std::uint64_t set = 0;  // its bit; kNoneAhead: what may not come next
    std::size_t least = 1;
    std::size_t most = 1;
  };
  using Sequence = std::vector<Item>;
  class Compiler;
  struct Cursor;

  Answer::Kind match(const Sequence& sequence, std::size_t item_idx, Cursor& cursor) const;

  std::vector<Sequence> alternatives_;
  std::array<std::uint64_t, 128> sets_of_{};  // of each character
  std::array<bool, 128> starts_{};            // some match may begin with it
  std::uint64_t repeated_start_ = 0;          // the one sequence's first set if it is repeated without end
};

}  // namespace grace
