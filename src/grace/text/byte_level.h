// The byte-level alphabet: each byte as one visible code point, so that a vocabulary of text can hold any
// bytes (GPT-2's bytes_to_unicode).
#pragma once

#include <string>
#include <string_view>

namespace grace {

// Every byte below U+0100 that prints stands for itself, the others follow from U+0100 on.
char32_t code_point_of_byte(unsigned char byte);
// -1 for a code point that stands for no byte.
int byte_of_code_point(char32_t code_point);

// Appends the code points of `bytes` as UTF-8.
void append_byte_level(std::string& out, std::string_view bytes);
// Appends the bytes that `token` stands for; one code point outside the alphabet, and the token's own bytes
// are appended instead. REQUIRES: token is UTF-8.
void append_bytes_of_token(std::string& out, std::string_view token);

}  // namespace grace
