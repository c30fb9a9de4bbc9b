#include "grace/text/utf8.h"

#include <gtest/gtest.h>

#include <random>

#include "grace/text/byte_level.h"
#include "grace/text/tokenizer.h"

namespace grace {
namespace {

TEST(Utf8, ComesBackFromEveryCodePoint) {
  for (char32_t c = 0; c < 0x110000; c += c >= 0x800 ? 7 : 1) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    ASSERT_EQ(find_invalid_utf8(text), std::string::npos);
    ASSERT_EQ(utf8_length(text[0]), text.size());
    std::size_t at = 0;
    ASSERT_EQ(next_code_point(text, at), c);
    ASSERT_EQ(at, text.size());
  }
}

TEST(Utf8, RefusesWhatNoCodePointEncodesTo) {
  EXPECT_EQ(find_invalid_utf8(""), std::string::npos);
  EXPECT_EQ(find_invalid_utf8("abc\x80"), 3u);
  EXPECT_EQ(find_invalid_utf8("\xC0\x80"), 0u);          // overlong
  EXPECT_EQ(find_invalid_utf8("\xE0\x9F\xBF"), 0u);      // overlong
  EXPECT_EQ(find_invalid_utf8("\xF0\x8F\xBF\xBF"), 0u);  // overlong
  EXPECT_EQ(find_invalid_utf8("ab\xED\xA0\x80"), 2u);    // a surrogate
  EXPECT_EQ(find_invalid_utf8("\xF4\x90\x80\x80"), 0u);  // over U+10FFFF
  EXPECT_EQ(find_invalid_utf8("\xF5\x80\x80\x80"), 0u);
  EXPECT_EQ(find_invalid_utf8("a\xE4\xBD"), 1u);  // cut short
}

// The examples of the Unicode standard, section 3.9, tables 3-8 to 3-11.
TEST(Utf8, ReplacesMaximalSubparts) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(utf8_lossy("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(utf8_lossy("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(utf8_lossy("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(utf8_lossy("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
}

TEST(Utf8, MakesUtf8OfAnyBytes) {
  std::mt19937_64 rng(1);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (std::size_t i = rng() % 20; i > 0; --i)
      bytes.push_back(static_cast<char>(rng() % 2 == 0 ? rng() : 0x80 + rng() % 0x80));
    const std::string text = utf8_lossy(bytes);
    ASSERT_EQ(find_invalid_utf8(text), std::string::npos) << "round " << round;
    if (find_invalid_utf8(bytes) == std::string::npos) {
      ASSERT_EQ(text, bytes);
    }
  }
}

TEST(TheByteLevelAlphabet, ComesBackFromEveryByte) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) {
    all.push_back(static_cast<char>(byte));
    EXPECT_EQ(byte_of_code_point(code_point_of_byte(static_cast<unsigned char>(byte))), byte);
  }
  std::string token;
  append_byte_level(token, all);
  std::string bytes;
  append_bytes_of_token(bytes, token);
  EXPECT_EQ(bytes, all);
  EXPECT_EQ(byte_of_code_point(U' '), -1);
  EXPECT_EQ(byte_of_code_point(0x144), -1);
  bytes.clear();
  append_bytes_of_token(
      bytes, "\u0120 \u0120");  // a space is no letter of the alphabet, so the token stands as it is
  EXPECT_EQ(bytes, "\u0120 \u0120");
}

}  // namespace
}  // namespace grace
