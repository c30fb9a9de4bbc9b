// The pre-tokeniser of a tokenizer.json: cuts text into words, across whose borders nothing is merged.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/result.h"
#include "grace/files/json.h"
#include "grace/text/regex.h"

namespace grace {

// A text and the pieces of it that are left: in order, not empty, not overlapping.
struct Pieces {
  std::string text;
  std::vector<ByteRange> ranges;
};

// What becomes of a match when a text is split.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// The pieces of [0, size) that `matches` make of it; with `invert`, what lies between the matches is the
// match. Some may be empty.
std::vector<ByteRange> split_by(const std::vector<ByteRange>& matches, std::size_t size,
                                SplitBehavior behavior, bool invert);

// Immutable, thread-safe.
class PreTokenizer {
 public:
  // null, Split, ByteLevel, Digits, Sequence. `place` begins the messages. Errors: invalid_input;
  // unsupported, naming the type.
  static Result<PreTokenizer> parse(const Json& json, std::string_view place);

  // Whether the last thing done, and only that, spells bytes in the byte-level alphabet.
  bool ends_byte_level() const;
  // With `leave_bytes` the last step's bytes are left as they are. REQUIRES: text is UTF-8; ends_byte_level()
  // for leave_bytes. Errors: those of Regex::find_all.
  Result<Pieces> split(std::string text, RegexScratch& scratch, bool leave_bytes = false) const;

 private:
  struct Step {
    std::unique_ptr<Regex> regex;  // null: no splitting
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
    bool byte_level = false;  // afterwards, each byte becomes a code point
    bool add_prefix_space = false;
  };
  Status add(const Json& json, std::string_view place);
  static Status apply_regex(const Step& step, RegexScratch& scratch, Pieces& pieces);

  std::vector<Step> steps_;
};

}  // namespace grace
