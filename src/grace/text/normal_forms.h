// Unicode's normal forms and lower case, as the reference library's tables have them.
#pragma once

#include <string>
#include <string_view>

namespace grace {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Time n log n at most; NFC costs little where nothing changes. REQUIRES: text is UTF-8.
std::string normal_form(std::string_view text, NormalForm form);
std::string lower_case(std::string_view text);

// Whether the reference normalises by tables that are older than this code point (Unicode 9): then it neither
// decomposes nor composes nor moves, whatever Unicode says of it today.
bool is_unknown_to_normal_forms(char32_t code_point);

}  // namespace grace
