// UTF-8 text one code point at a time, and the few Unicode properties that added tokens need.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace grace {

// The code point that starts at text[at]; moves `at` behind it. REQUIRES: text is UTF-8, at is the start of a
// code point in it.
char32_t next_code_point(std::string_view text, std::size_t& at);
// Bytes of the code point whose first byte is `lead`. REQUIRES: lead starts a code point.
std::size_t utf8_length(char lead);
void append_utf8(std::string& text, char32_t code_point);
bool is_ascii(std::string_view text);

// `bytes` with every maximal prefix of a code point that breaks off, and every byte that starts none, as one
// U+FFFD (Unicode 3.9, "U+FFFD substitution of maximal subparts"; what Rust calls from_utf8_lossy).
std::string utf8_lossy(std::string_view bytes);

// Unicode's White_Space.
bool is_white_space(char32_t code_point);
// Letters, marks, decimal digits, connectors, joiners: what a regular expression calls \w (Unicode TR18).
bool is_word_character(char32_t code_point);

}  // namespace grace
