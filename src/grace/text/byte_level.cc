#include "grace/text/byte_level.h"

#include <array>

#include "grace/text/utf8.h"

namespace grace {
namespace {

constexpr char32_t kAlphabetEnd = 0x144;  // 256 + the 68 bytes that do not print

struct Alphabet {
  std::array<char32_t, 256> of_byte{};
  std::array<int, kAlphabetEnd> of_code_point{};
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.of_code_point.fill(-1);
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const char32_t code_point = prints ? static_cast<char32_t>(byte) : next++;
    alphabet.of_byte[byte] = code_point;
    alphabet.of_code_point[code_point] = static_cast<int>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

char32_t code_point_of_byte(unsigned char byte) { return kAlphabet.of_byte[byte]; }

int byte_of_code_point(char32_t code_point) {
  return code_point < kAlphabetEnd ? kAlphabet.of_code_point[code_point] : -1;
}

void append_byte_level(std::string& out, std::string_view bytes) {
  for (const char c : bytes) append_utf8(out, code_point_of_byte(static_cast<unsigned char>(c)));
}

void append_bytes_of_token(std::string& out, std::string_view token) {
  const std::size_t size = out.size();
  for (std::size_t at = 0; at < token.size();) {
    const int byte = byte_of_code_point(next_code_point(token, at));
    if (byte < 0) {
      out.resize(size);
      out.append(token);
      return;
    }
    out.push_back(static_cast<char>(byte));
  }
}

}  // namespace grace
