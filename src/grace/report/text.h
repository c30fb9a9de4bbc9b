// Escaping and number spelling shared by the pictures of this room.
#pragma once

#include <string>
#include <string_view>

namespace grace::report {

// `text` with bytes that are not UTF-8 replaced by U+FFFD.
std::string valid_utf8(std::string_view text);
// For element content and double-quoted attributes.
std::string escape_html(std::string_view text);
// With quotes. `<` is escaped too, so that the string may stand inside a script element.
std::string json_string(std::string_view text);
// Six significant digits; `null` for what is not finite.
std::string json_number(double value);
// Short, for people: `0`, `1.25`, `12 340`, `3.2e+07`; a dash for what is not finite.
std::string short_number(double value);
// Code points of `text`.
std::size_t code_points(std::string_view text);

}  // namespace grace::report
