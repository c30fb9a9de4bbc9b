#include "grace/text/utf8.h"

#include <utf8proc.h>

#include <algorithm>

#include "grace/text/tokenizer.h"

namespace grace {
namespace {

unsigned byte_at(std::string_view text, std::size_t at) { return static_cast<unsigned char>(text[at]); }

// What starts at text[at]: a code point of `length` bytes, or (not valid) a subpart of `length` >= 1 bytes
// that leads nowhere.
struct Subpart {
  std::size_t length;
  bool valid;
};

// The second byte's range tells overlong forms, surrogates and values above U+10FFFF (Unicode table 3-7).
Subpart subpart_at(std::string_view text, std::size_t at) {
  const unsigned lead = byte_at(text, at);
  if (lead < 0x80) return {1, true};
  if (lead < 0xC2 || lead > 0xF4) return {1, false};
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  const unsigned lowest = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned highest = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t i = 1; i < length; ++i) {
    if (at + i == text.size()) return {i, false};
    const unsigned byte = byte_at(text, at + i);
    if (byte < (i == 1 ? lowest : 0x80) || byte > (i == 1 ? highest : 0xBF)) return {i, false};
  }
  return {length, true};
}

}  // namespace

std::size_t find_invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Subpart part = subpart_at(text, at);
    if (!part.valid) return at;
    at += part.length;
  }
  return std::string_view::npos;
}

std::size_t utf8_length(char lead) {
  const unsigned byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

char32_t next_code_point(std::string_view text, std::size_t& at) {
  const std::size_t length = utf8_length(text[at]);
  const unsigned lead = byte_at(text, at);
  unsigned value = length == 1 ? lead : lead & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) value = value << 6 | (byte_at(text, at + i) & 0x3F);
  at += length;
  return value;
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto append = [&](unsigned byte) { text.push_back(static_cast<char>(byte)); };
  const unsigned value = code_point;
  if (value < 0x80) return append(value);
  if (value < 0x800) {
    append(0xC0 | value >> 6);
  } else {
    if (value < 0x10000) {
      append(0xE0 | value >> 12);
    } else {
      append(0xF0 | value >> 18);
      append(0x80 | (value >> 12 & 0x3F));
    }
    append(0x80 | (value >> 6 & 0x3F));
  }
  append(0x80 | (value & 0x3F));
}

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::string utf8_lossy(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (std::size_t at = 0; at < bytes.size();) {
    const Subpart part = subpart_at(bytes, at);
    if (part.valid) {
      text.append(bytes.substr(at, part.length));
    } else {
      text.append("\xEF\xBF\xBD");
    }
    at += part.length;
  }
  return text;
}

bool is_white_space(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_word_character(char32_t c) {
  // Other_Alphabetic symbols, and the two joiners.
  if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
      (c >= 0x1F170 && c <= 0x1F189) || c == 0x200C || c == 0x200D) {
    return true;
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

}  // namespace grace
