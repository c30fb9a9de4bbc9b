#include "grace/text/regex.h"

#include <gtest/gtest.h>

#include "grace/text/pre_tokenizer.h"
#include "grace/text/utf8.h"

namespace grace {
namespace {

std::vector<std::string> matches_of(const std::string& pattern, const std::string& text) {
  RegexScratch scratch;
  std::vector<ByteRange> ranges;
  Regex::compile(pattern, "p").value().find_all(text, scratch, ranges).value();
  std::vector<std::string> matches;
  for (const ByteRange& range : ranges) matches.push_back(text.substr(range.begin, range.end - range.begin));
  return matches;
}

using Strings = std::vector<std::string>;

TEST(ARegex, CallsSpaceWhatUnicodeCallsWhiteSpace) {
  RegexScratch scratch;
  const Regex spaces = Regex::compile("\\s", "p").value();
  const Regex others = Regex::compile("\\S", "p").value();
  const Regex others_in_class = Regex::compile("[\\S]", "p").value();
  const Regex spaces_by_class = Regex::compile("[^\\S]", "p").value();
  std::vector<ByteRange> found;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    if (c > 0x4000 && c % 251 != 0) continue;
    std::string text;
    append_utf8(text, c);
    for (const auto& [regex, expected] :
         {std::pair(&spaces, true), {&spaces_by_class, true}, {&others, false}, {&others_in_class, false}}) {
      regex->find_all(text, scratch, found).value();
      ASSERT_EQ(found.size() == 1, is_white_space(c) == expected)
          << std::hex << static_cast<std::uint32_t>(c);
    }
  }
}

TEST(ARegex, KnowsTheLettersOfUnicode16) {
  EXPECT_EQ(matches_of("\\p{L}+", "a\U00031350b"), Strings{"a\U00031350b"});  // since 15
  EXPECT_EQ(matches_of("[^\\p{L}]+", "a\U0002EBF0\u3042!"), Strings{"!"});    // since 15.1
  EXPECT_EQ(matches_of("\\p{N}", "\U00010D40"), Strings{"\U00010D40"});       // since 16
  EXPECT_EQ(matches_of("\\p{Han}+", "x\u4E00\U00031350"), Strings{"\u4E00\U00031350"});
}

TEST(ARegex, ReadsTheSyntaxAsOnigurumaDoes) {
  EXPECT_EQ(matches_of("^a|b$", "ab\nab\n"), (Strings{"a", "b", "a", "b"}));
  EXPECT_EQ(matches_of(".+", "a\rb\nc"), (Strings{"a\rb", "c"}));
  EXPECT_EQ(matches_of("\\v", "\n\v"), Strings{"\v"});
  EXPECT_EQ(matches_of("\\u3042\\x{3044}", "\u3042\u3044"), Strings{"\u3042\u3044"});
  EXPECT_EQ(matches_of("(?i:'s|'ll)", "'S 'lL '\u017F"), (Strings{"'S", "'lL", "'\u017F"}));
  EXPECT_EQ(matches_of("a{2,3}?", "aaaa"), (Strings{"aa", "aa"}));
  EXPECT_EQ(matches_of("a++b|\\{x", "aab{x"), (Strings{"aab", "{x"}));
  EXPECT_EQ(matches_of("[\\s-x]", "a-x w"), (Strings{"-", "x", " "}));
  EXPECT_EQ(matches_of("\\p{Hiragana}", "\u30FC\u3042"),
            Strings{"\u3042"});  // the script, not its extensions
}

TEST(ARegex, FindsEmptyMatchesAsTheReferenceDoes) {
  EXPECT_EQ(matches_of("x*", "axxb"), (Strings{"", "xx", ""}));
  EXPECT_EQ(matches_of("", "\u3042b"), (Strings{"", "", ""}));
  EXPECT_EQ(matches_of("x*", ""), Strings{""});
}

TEST(ARegex, EscapesLiterals) {
  const std::string literal = "a.b*c[d]{2}(e)|\\f^$+?-#&&~/ \u3042";
  EXPECT_EQ(matches_of(escape_regex(literal), "x" + literal + literal), (Strings{literal, literal}));
}

TEST(ARegex, RefusesByNameWhatWouldMeanSomethingElse) {
  for (const std::string construct :
       {"\\w", "\\b", "\\h", "\\R", "\\1", "\\G", "\\K", "\\Q", "(?m", "(?x", "(?#", "(?P", "(*", "{,"}) {
    const Result<Regex> regex = Regex::compile("a" + construct + "2})", "p");
    ASSERT_FALSE(regex.ok()) << construct;
    EXPECT_EQ(regex.error().kind, ErrorKind::kUnsupported);
    EXPECT_NE(regex.error().message.find("`" + construct + "` at byte 1"), std::string::npos)
        << regex.error().message;
  }
  for (const std::string pattern : {"[[:alpha:]]", "[a&&b]", "[]a]", "a{2}?", "a{2}+", "a{1,}+", "[a-\\s]",
                                    "\\pL", "\\p{L", "[a", "\\", "a)", "\\p{Klingon}", "\\u12"})
    EXPECT_FALSE(Regex::compile(pattern, "p").ok()) << pattern;
}

std::string split(const std::vector<ByteRange>& matches, SplitBehavior behavior, bool invert = false) {
  const std::string text = "ab--c-";
  std::string out;
  for (const ByteRange& range : split_by(matches, text.size(), behavior, invert))
    out += text.substr(range.begin, range.end - range.begin) + "|";
  return out;
}

TEST(ASplit, DoesWithItsMatchesAsItsBehaviorSays) {
  const std::vector<ByteRange> dashes = {{2, 3}, {3, 4}, {5, 6}};
  EXPECT_EQ(split(dashes, SplitBehavior::kIsolated), "ab|-|-|c|-|");
  EXPECT_EQ(split(dashes, SplitBehavior::kRemoved), "ab|c|");
  EXPECT_EQ(split(dashes, SplitBehavior::kRemoved, true), "-|-|-|");
  EXPECT_EQ(split(dashes, SplitBehavior::kContiguous), "ab|--|c|-|");
  EXPECT_EQ(split(dashes, SplitBehavior::kMergedWithPrevious), "ab-|-|c-|");
  EXPECT_EQ(split(dashes, SplitBehavior::kMergedWithNext), "ab|-|-c|-|");
  EXPECT_EQ(split({}, SplitBehavior::kRemoved), "ab--c-|");
}

}  // namespace
}  // namespace grace
