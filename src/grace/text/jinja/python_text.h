// What Python does with text, on UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace grace::jinja {

// REQUIRES of all: text is UTF-8.
std::u32string code_points(std::string_view text);
std::string utf8(std::u32string_view code_points);
std::size_t length_in_code_points(std::string_view text);

// str.isspace for one code point: Unicode's White_Space and the four separators U+1C to U+1F.
bool is_python_space(char32_t code_point);

// str.strip, of the code points in `chars`, or of white space.
std::string strip(std::string_view text, const std::optional<std::string>& chars, bool left, bool right);
// str.split: at white space without a separator. most < 0: at every one. REQUIRES: the separator is not
// empty.
std::vector<std::string> split(std::string_view text, const std::optional<std::string>& separator,
                               std::int64_t most);
std::vector<std::string> rsplit(std::string_view text, const std::string& separator, std::int64_t most);
std::vector<std::string> split_lines(std::string_view text);
// str.replace. most < 0: every one.
std::string replace(std::string_view text, std::string_view old, std::string_view with, std::int64_t most);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);
// The filter `title`, which begins words elsewhere.
std::string title_of_filter(std::string_view text);

std::string repr_of_text(std::string_view text);
std::string repr_of_float(double value);
std::string escape_html(std::string_view text);

}  // namespace grace::jinja
