// The normaliser of a tokenizer.json: what happens to text before it is split.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/result.h"
#include "grace/files/json.h"
#include "grace/text/regex.h"

namespace grace {

// Immutable, thread-safe.
class Normalizer {
 public:
  // null, NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Sequence. `place` begins the messages. Errors:
  // invalid_input; unsupported, naming the type.
  static Result<Normalizer> parse(const Json& json, std::string_view place);

  // REQUIRES: text is UTF-8. Errors: those of Regex::find_all.
  Result<std::string> normalize(std::string_view text, RegexScratch& scratch) const;
  bool empty() const { return steps_.empty(); }

 private:
  enum class Kind { kNfc, kNfd, kNfkc, kNfkd, kLowercase, kPrepend, kReplace };
  struct Step {
    Kind kind;
    std::string content;           // kPrepend, kReplace
    std::unique_ptr<Regex> regex;  // kReplace
  };
  Status add(const Json& json, std::string_view place);

  std::vector<Step> steps_;
};

}  // namespace grace
