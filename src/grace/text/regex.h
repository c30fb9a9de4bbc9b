// Regular expressions as tokenizer.json writes them (Oniguruma's syntax), matched by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/result.h"

namespace grace {

struct ByteRange {
  std::size_t begin = 0;  // [begin, end), in bytes
  std::size_t end = 0;
};

// Working memory of the matcher. Thread-compatible: one thread at a time.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Immutable, thread-safe.
class Regex {
 public:
  // `place` begins the messages. Errors: invalid_input for a malformed pattern; unsupported for a construct
  // that PCRE2 has not, or reads otherwise.
  enum class Matcher { kFastest, kPcreOnly };  // the same matches; kPcreOnly is the slow twin of tests
  static Result<Regex> compile(std::string_view pattern, std::string_view place,
                               Matcher matcher = Matcher::kFastest);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Replaces `matches` with all matches from left to right; none overlap, and an empty one never follows
  // another match directly. REQUIRES: text is UTF-8. Errors: unsupported when a match takes more steps than
  // 10 million or 64 a byte of `text`, whichever is more.
  Status find_all(std::string_view text, RegexScratch& scratch, std::vector<ByteRange>& matches) const;

 private:
  struct Impl;
  explicit Regex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A pattern that matches exactly `literal`.
std::string escape_regex(std::string_view literal);

// The same pattern in PCRE2's syntax (with PCRE2_UTF, PCRE2_UCP and PCRE2_MULTILINE). Errors: unsupported,
// naming the construct.
Result<std::string> pcre_of_oniguruma(std::string_view pattern, std::string_view place);

// Ranges, spelled for a PCRE2 class, of the code points that Unicode 16 added to a general category or script
// after Unicode 14; empty for names without any.
std::string_view unicode_additions(std::string_view property);

}  // namespace grace
