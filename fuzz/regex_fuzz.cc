// Any text by each published pattern: the hand-written matcher finds what PCRE2 finds.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "grace/base/check.h"
#include "grace/text/regex.h"
#include "grace/text/tokenizer.h"

namespace {

using grace::Regex;

constexpr std::string_view kPatterns[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    "\\s?[A-Za-z\u00B5\u00C0-\u00D6]+",
    R"(\s+$)",
    R"(\s?\p{P}+)",
    R"([^\s]?\p{N}*\s+)",
};

std::vector<std::pair<Regex, Regex>> matchers() {
  std::vector<std::pair<Regex, Regex>> both;
  for (const std::string_view pattern : kPatterns) {
    both.emplace_back(Regex::compile(pattern, "fuzz").value(),
                      Regex::compile(pattern, "fuzz", Regex::Matcher::kPcreOnly).value());
  }
  return both;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<std::pair<Regex, Regex>> both = matchers();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (grace::find_invalid_utf8(text) != std::string_view::npos) return 0;
  grace::RegexScratch scratch;
  std::vector<grace::ByteRange> found;
  std::vector<grace::ByteRange> expected;
  for (const auto& [fast, slow] : both) {
    fast.find_all(text, scratch, found).value();
    slow.find_all(text, scratch, expected).value();
    GRACE_CHECK(found.size() == expected.size(), "another number of matches");
    for (std::size_t i = 0; i < found.size(); ++i) {
      GRACE_CHECK(found[i].begin == expected[i].begin && found[i].end == expected[i].end, "another match");
    }
  }
  return 0;
}
