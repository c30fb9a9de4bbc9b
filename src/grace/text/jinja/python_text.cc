#include "grace/text/jinja/python_text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cmath>

#include "grace/text/normal_forms.h"
#include "grace/text/utf8.h"

namespace grace::jinja {
namespace {

bool is_line_end(char32_t c) {
  return (c >= 0xA && c <= 0xD) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool is_cased(char32_t c) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
         category == UTF8PROC_CATEGORY_LT;
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

std::string upper_of(char32_t c) {
  if (c == 0xDF) return "SS";
  std::string out;
  append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
  return out;
}

std::vector<std::string> split_at_space(std::u32string_view text, std::int64_t most) {
  std::vector<std::string> parts;
  for (std::size_t at = 0;;) {
    while (at < text.size() && is_python_space(text[at])) ++at;
    if (at == text.size()) return parts;
    std::size_t end = at;
    if (most >= 0 && static_cast<std::int64_t>(parts.size()) == most) {
      end = text.size();
      while (is_python_space(text[end - 1])) --end;
      parts.push_back(utf8(text.substr(at, end - at)));
      return parts;
    }
    while (end < text.size() && !is_python_space(text[end])) ++end;
    parts.push_back(utf8(text.substr(at, end - at)));
    at = end;
  }
}

}  // namespace

std::u32string code_points(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) out.push_back(next_code_point(text, at));
  return out;
}

std::string utf8(std::u32string_view points) {
  std::string out;
  out.reserve(points.size());
  for (const char32_t c : points) append_utf8(out, c);
  return out;
}

std::size_t length_in_code_points(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

bool is_python_space(char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

std::string strip(std::string_view text, const std::optional<std::string>& chars, bool left, bool right) {
  const std::u32string points = code_points(text);
  const std::u32string set = chars.has_value() ? code_points(*chars) : std::u32string();
  const auto goes = [&](char32_t c) {
    return chars.has_value() ? set.find(c) != std::u32string::npos : is_python_space(c);
  };
  std::size_t begin = 0;
  std::size_t end = points.size();
  while (left && begin < end && goes(points[begin])) ++begin;
  while (right && begin < end && goes(points[end - 1])) --end;
  return utf8(std::u32string_view(points).substr(begin, end - begin));
}

std::vector<std::string> split(std::string_view text, const std::optional<std::string>& separator,
                               std::int64_t most) {
  if (!separator.has_value()) return split_at_space(code_points(text), most);
  std::vector<std::string> parts;
  while (most < 0 || static_cast<std::int64_t>(parts.size()) < most) {
    const std::size_t found = text.find(*separator);
    if (found == std::string_view::npos) break;
    parts.emplace_back(text.substr(0, found));
    text.remove_prefix(found + separator->size());
  }
  parts.emplace_back(text);
  return parts;
}

std::vector<std::string> rsplit(std::string_view text, const std::string& separator, std::int64_t most) {
  std::vector<std::string> parts;
  while (most < 0 || static_cast<std::int64_t>(parts.size()) < most) {
    const std::size_t found = text.rfind(separator);
    if (found == std::string_view::npos) break;
    parts.emplace_back(text.substr(found + separator.size()));
    text = text.substr(0, found);
  }
  parts.emplace_back(text);
  std::ranges::reverse(parts);
  return parts;
}

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t here = at;
    const char32_t c = next_code_point(text, at);
    if (!is_line_end(c)) continue;
    lines.emplace_back(text.substr(begin, here - begin));
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    begin = at;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

std::string replace(std::string_view text, std::string_view old, std::string_view with, std::int64_t most) {
  std::string out;
  for (std::size_t at = 0; most != 0;) {
    const std::size_t found = text.find(old, at);
    if (found == std::string_view::npos) break;
    if (most > 0) --most;
    out.append(text.substr(0, found)).append(with);
    text.remove_prefix(found + old.size());
    if (!old.empty()) continue;
    // An empty text is between all code points.
    if (text.empty()) return out;
    const std::size_t length = utf8_length(text[0]);
    out.append(text.substr(0, length));
    text.remove_prefix(length);
  }
  return std::move(out.append(text));
}

std::string upper(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) out += upper_of(next_code_point(text, at));
  return out;
}

std::string lower(std::string_view text) { return lower_case(text); }

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  std::size_t at = 0;
  const std::string first = upper_of(next_code_point(text, at));
  return first + lower(text.substr(at));
}

std::string title(std::string_view text) {
  std::string out;
  bool in_word = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t c = next_code_point(text, at);
    out += in_word ? lower(text.substr(begin, at - begin)) : upper_of(c);
    in_word = is_cased(c);
  }
  return out;
}

std::string title_of_filter(std::string_view text) {
  std::string out;
  bool in_word = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t c = next_code_point(text, at);
    const bool is_border =
        is_python_space(c) || std::u32string_view(U"-({[<").find(c) != std::u32string_view::npos;
    const std::string_view same = text.substr(begin, at - begin);
    out += is_border ? std::string(same) : in_word ? lower(same) : upper_of(c);
    in_word = !is_border;
  }
  return out;
}

std::string repr_of_text(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out.push_back('\\');
      append_utf8(out, c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (is_printable(c)) {
      append_utf8(out, c);
    } else {
      const auto value = static_cast<std::uint32_t>(c);
      out += value < 0x100     ? fmt::format("\\x{:02x}", value)
             : value < 0x10000 ? fmt::format("\\u{:04x}", value)
                               : fmt::format("\\U{:08x}", value);
    }
  }
  out.push_back(quote);
  return out;
}

std::string repr_of_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

}  // namespace grace::jinja
