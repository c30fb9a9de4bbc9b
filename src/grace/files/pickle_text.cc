#include "grace/files/pickle_text.h"

#include <charconv>
#include <cstdint>

namespace grace {
namespace {

void append_utf8(std::string& out, std::uint32_t code) {
  const auto put = [&](std::uint32_t byte) { out += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0U | code >> 6U);
    put(0x80U | (code & 0x3fU));
  } else if (code < 0x10000) {
    put(0xe0U | code >> 12U);
    put(0x80U | (code >> 6U & 0x3fU));
    put(0x80U | (code & 0x3fU));
  } else {
    put(0xf0U | (code >> 18U & 7U));
    put(0x80U | (code >> 12U & 0x3fU));
    put(0x80U | (code >> 6U & 0x3fU));
    put(0x80U | (code & 0x3fU));
  }
}

}  // namespace

std::optional<std::string> unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    if (++i == text.size()) return std::nullopt;
    constexpr std::string_view kFrom = "\\'\"ntr", kTo = "\\'\"\n\t\r";
    if (const std::size_t simple = kFrom.find(text[i]); simple != std::string_view::npos) {
      out += kTo[simple];
      continue;
    }
    int code = 0;
    const char* const begin = text.data() + i + 1;
    if (text[i] != 'x' || i + 2 >= text.size() ||
        std::from_chars(begin, begin + 2, code, 16).ptr != begin + 2)
      return std::nullopt;
    out += static_cast<char>(code);
    i += 2;
  }
  return out;
}

std::string decode_raw_unicode(std::string_view line) {
  std::string out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const std::size_t digits = line[i] != '\\' || i + 1 == line.size() ? 0
                               : line[i + 1] == 'u'                    ? 4
                               : line[i + 1] == 'U'                    ? 8
                                                                       : 0;
    std::uint32_t code = static_cast<unsigned char>(line[i]);
    if (digits != 0 && line.size() - i >= 2 + digits) {
      const char* const begin = line.data() + i + 2;
      std::uint32_t escaped = 0;
      if (std::from_chars(begin, begin + digits, escaped, 16).ptr == begin + digits) {
        code = escaped;
        i += 1 + digits;
      }
    }
    append_utf8(out, code);
  }
  return out;
}

}  // namespace grace
