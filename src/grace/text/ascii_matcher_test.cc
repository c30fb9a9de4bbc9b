#include "grace/text/ascii_matcher.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>

#include "grace/files/mapped_file.h"
#include "grace/text/regex.h"
#include "grace/text/utf8.h"

namespace grace {
namespace {

// Of the tokenizers of GPT-2, Qwen2, Llama 3, DeepSeek, and of others' pre-tokenisers.
const std::vector<std::string> kPatterns = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    "[\r\n]",
    "\\s?[A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA]+",
    "\\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+",
    R"(\s+$)",
    R"(\p{N})",
    R"(\p{N}{1,3})",
    R"(\s?\p{P}+)",
    R"([^\s]|\s+)",
};

AsciiMatcher::AsciiSet set_of_any(bool member) {
  AsciiMatcher::AsciiSet set;
  set.fill(member);
  return set;
}

std::string random_text(std::mt19937_64& rng) {
  static const std::u32string kChars =
      U"   \t\n\r\n  "
      U"aabcXYZstreveldm'''0123.,;!?-_[]{}()\\\u00A0\u017F\u00E9\u3000\u4E00\u0301\u2028\u00B2\U0001F600";
  std::string text;
  const bool ascii = rng() % 3 == 0;
  for (std::size_t i = rng() % 60; i > 0; --i) {
    const char32_t c =
        rng() % 40 == 0 && !ascii ? static_cast<char32_t>(rng() % 0xD800) : kChars[rng() % kChars.size()];
    if (c < 128 || !ascii) append_utf8(text, c);
  }
  return text;
}

std::string ends_of(const Regex& regex, const std::string& text) {
  RegexScratch scratch;
  std::vector<ByteRange> ranges;
  regex.find_all(text, scratch, ranges).value();
  std::string out;
  for (const ByteRange& range : ranges)
    out += std::to_string(range.begin) + "-" + std::to_string(range.end) + " ";
  return out;
}

class AnAsciiMatcher : public testing::TestWithParam<std::uint64_t> {};

TEST_P(AnAsciiMatcher, FindsWhatPcreFinds) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  std::mt19937_64 rng(GetParam());
  for (const std::string& pattern : kPatterns) {
    const Regex fast = Regex::compile(pattern, "p").value();
    const Regex slow = Regex::compile(pattern, "p", Regex::Matcher::kPcreOnly).value();
    for (int round = 0; round < 60; ++round) {
      const std::string text = random_text(rng);
      ASSERT_EQ(ends_of(fast, text), ends_of(slow, text)) << pattern << " in `" << text << "`";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, AnAsciiMatcher, testing::Range<std::uint64_t>(0, 50));

TEST(AnAsciiMatcher, TakesTheFormsThatTokenizersArePublishedWith) {
  const auto set_of = [](std::string_view) { return Result<AsciiMatcher::AsciiSet>(set_of_any(true)); };
  for (const std::string& pattern : kPatterns)
    EXPECT_TRUE(AsciiMatcher::compile(pattern, set_of).has_value()) << pattern;
}

TEST(AnAsciiMatcher, LeavesEveryOtherFormAlone) {
  const auto set_of = [](std::string_view) { return Result<AsciiMatcher::AsciiSet>(set_of_any(true)); };
  for (const std::string pattern :
       {"",      "a*",   "a?|b",   "a||b",    "(a)",     "a++",     "a+?",     "a{2}",    "a{1,3}?",
        "^a",    ".",    "(?=a)b", "(?<=a)b", "(?i)a",   "a(?i:b)", "(?i:b)+", "(?i:b.)", "[a&&b]",
        "[[a]]", "\\Aa", "\\w",    "$",       "(?!\\S)", "a(?!b)",  "\u3042"})
    EXPECT_FALSE(AsciiMatcher::compile(pattern, set_of).has_value()) << pattern;
}

TEST(AnAsciiMatcher, FindsWhatPcreFindsInTheCorpus) {
  int count = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(std::filesystem::path(GRACE_SOURCE_DIR) / "fuzz/corpus/regex")) {
    SCOPED_TRACE(file.path().filename().string());
    const std::string text = read_text(file.path()).value();
    for (const std::string& pattern : kPatterns)
      EXPECT_EQ(ends_of(Regex::compile(pattern, "p").value(), text),
                ends_of(Regex::compile(pattern, "p", Regex::Matcher::kPcreOnly).value(), text))
          << pattern;
    ++count;
  }
  EXPECT_GT(count, 2);
}

// Each of a run's beginnings would fail at the run's end.
TEST(AnAsciiMatcher, LooksAtARunThatLeadsNowhereOnce) {
  RegexScratch scratch;
  std::vector<ByteRange> found;
  Regex::compile(R"(\s+$)", "p").value().find_all(std::string(1 << 20, ' ') + "x", scratch, found).value();
  EXPECT_TRUE(found.empty());
}

}  // namespace
}  // namespace grace
