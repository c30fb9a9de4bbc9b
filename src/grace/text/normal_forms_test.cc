#include "grace/text/normal_forms.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <random>

#include "grace/text/utf8.h"

namespace grace {
namespace {

// The slow twin, for texts without code points that the reference does not know.
std::string by_utf8proc(const std::string& text, int options) {
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &out,
                                             static_cast<utf8proc_option_t>(UTF8PROC_STABLE | options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(out, &std::free);
  return {reinterpret_cast<const char*>(out), static_cast<std::size_t>(size)};
}

void expect_as_utf8proc(const std::string& text) {
  ASSERT_EQ(normal_form(text, NormalForm::kNfc), by_utf8proc(text, UTF8PROC_COMPOSE)) << text;
  ASSERT_EQ(normal_form(text, NormalForm::kNfd), by_utf8proc(text, UTF8PROC_DECOMPOSE)) << text;
  ASSERT_EQ(normal_form(text, NormalForm::kNfkc), by_utf8proc(text, UTF8PROC_COMPOSE | UTF8PROC_COMPAT))
      << text;
  ASSERT_EQ(normal_form(text, NormalForm::kNfkd), by_utf8proc(text, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT))
      << text;
}

TEST(ANormalForm, IsUtf8procsForEveryCodePointThatTheReferenceKnows) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if ((c >= 0xD800 && c < 0xE000) || is_unknown_to_normal_forms(c)) continue;
    if (c > 0x20000 && c < 0x2F000) continue;  // ideographs
    std::string text;
    append_utf8(text, c);
    expect_as_utf8proc(text);
    if (c < 0x300) continue;
    const std::string between = "a\u0345" + text + "\u0334\u0301e" + text;
    ASSERT_EQ(normal_form(between, NormalForm::kNfc), by_utf8proc(between, UTF8PROC_COMPOSE)) << between;
  }
}

class ANormalFormOfRandomText : public testing::TestWithParam<std::uint64_t> {};

TEST_P(ANormalFormOfRandomText, IsUtf8procs) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  std::mt19937_64 rng(GetParam());
  static const std::u32string kChars =
      U"aeq "
      U"\u00e9\u00c5\u0300\u0301\u0323\u0345\u0334\u0327\u0338\u05b0\u064b\u3099\u309a\u304b\u09c7\u09be"
      U"\u09d7\u0b47\u0b56"
      U"\u0dd9\u0dcf\u0dca\u1025\u102e\u1100\u1161\u11a8\u11c2\uac00\uac01\u1e9b\ufb01\u0344\u0958\u212b"
      U"\u2126\u2013\u4e00"
      U"\U0001D15E\U0002F800";
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (std::size_t i = rng() % 12; i > 0; --i) append_utf8(text, kChars[rng() % kChars.size()]);
    expect_as_utf8proc(text);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ANormalFormOfRandomText, testing::Range<std::uint64_t>(0, 5));

TEST(ANormalForm, LeavesAloneWhatTheReferenceDoesNotKnow) {
  for (const NormalForm form : {NormalForm::kNfc, NormalForm::kNfd, NormalForm::kNfkc, NormalForm::kNfkd}) {
    for (const std::string text :
         {"a\u0898\u0334", "\u1abf\u0334", "\U00011935\U00011930", "\U00011938", "\u32ff"})
      EXPECT_EQ(normal_form(text, form), text);
  }
  EXPECT_EQ(normal_form("e\u0301\u0898\u0301", NormalForm::kNfc), "\u00e9\u0898\u0301");
}

TEST(ALowerCase, KnowsTheLettersOfUnicode17) {
  EXPECT_EQ(lower_case("\u0130X\u1c89\ua7cb\ua7dc\U00010d50\U00010d65\U00016ea0\U00016eb8"),
            "i\u0307x\u1c8a\u0264\u019b\U00010d70\U00010d85\U00016ebb\U00016ed3");
}

}  // namespace
}  // namespace grace
