#include "grace/text/normalizer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "grace/text/json_fields.h"
#include "grace/text/utf8.h"

namespace grace {
namespace {

constexpr char32_t kFirstComposing =
    0x300;  // no canonical form changes a text whose code points all lie below

bool changes_nothing_canonical(std::string_view text) {
  for (std::size_t at = 0; at < text.size();)
    if (next_code_point(text, at) >= kFirstComposing) return false;
  return true;
}

int combining_class(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

void append_decomposition(std::vector<utf8proc_int32_t>& out, char32_t code_point,
                          utf8proc_option_t options) {
  std::array<utf8proc_int32_t, 32> buffer;  // the longest decomposition has 18 (U+FDFA)
  int boundary = 0;
  const utf8proc_ssize_t count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), buffer.data(),
                              static_cast<utf8proc_ssize_t>(buffer.size()), options, &boundary);
  GRACE_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(buffer.size()), "utf8proc_decompose_char");
  out.insert(out.end(), buffer.begin(), buffer.begin() + count);
}

// Sorts each run of combining marks by class. utf8proc_decompose would do it too, in time quadratic in the
// run.
void order_marks(std::vector<utf8proc_int32_t>& code_points) {
  const auto is_starter = [](utf8proc_int32_t c) { return combining_class(c) == 0; };
  for (auto begin = code_points.begin(); begin != code_points.end();) {
    begin = std::find_if_not(begin, code_points.end(), is_starter);
    const auto end = std::find_if(begin, code_points.end(), is_starter);
    std::stable_sort(begin, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return combining_class(a) < combining_class(b);
    });
    begin = end;
  }
}

std::string unicode_form(std::string_view text, bool compatible, bool compose) {
  if (compatible || !compose ? is_ascii(text) : changes_nothing_canonical(text)) return std::string(text);
  const int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0);
  std::vector<utf8proc_int32_t> code_points;
  code_points.reserve(text.size());
  for (std::size_t at = 0; at < text.size();)
    append_decomposition(code_points, next_code_point(text, at), static_cast<utf8proc_option_t>(options));
  order_marks(code_points);
  std::size_t count = code_points.size();
  if (compose) {
    const utf8proc_ssize_t composed =
        utf8proc_normalize_utf32(code_points.data(), static_cast<utf8proc_ssize_t>(count),
                                 static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    GRACE_CHECK(composed >= 0, "utf8proc_normalize_utf32");
    count = static_cast<std::size_t>(composed);
  }
  std::string out;
  out.reserve(text.size());
  for (const utf8proc_int32_t c : std::span(code_points).first(count))
    append_utf8(out, static_cast<char32_t>(c));
  return out;
}

std::string lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (c == 0x130) {  // the one code point whose lower case is two
      out += "i\u0307";
    } else {
      append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  }
  return out;
}

Result<std::string> replace(std::string_view text, const Regex& regex, std::string_view content,
                            RegexScratch& scratch) {
  std::vector<ByteRange> matches;
  GRACE_TRY(regex.find_all(text, scratch, matches));
  std::string out;
  std::size_t at = 0;
  for (const ByteRange& match : matches) {
    out.append(text.substr(at, match.begin - at)).append(content);
    at = match.end;
  }
  return std::move(out.append(text.substr(at)));
}

}  // namespace

Result<Normalizer> Normalizer::parse(const Json& json, std::string_view place) {
  Normalizer normalizer;
  GRACE_TRY(normalizer.add(json, place));
  return normalizer;
}

Status Normalizer::add(const Json& json, std::string_view place) {
  if (json.is_null()) return {};
  static constexpr std::array<std::pair<std::string_view, Kind>, 5> kPlain = {
      {{"NFC", Kind::kNfc},
       {"NFD", Kind::kNfd},
       {"NFKC", Kind::kNfkc},
       {"NFKD", Kind::kNfkd},
       {"Lowercase", Kind::kLowercase}}};
  const std::string_view type = GRACE_TRY(get_type(json, place));
  for (const auto& [name, kind] : kPlain)
    if (type == name) return steps_.push_back({kind, {}, nullptr}), Status();
  if (type == "Sequence") {
    const Json* parts = GRACE_TRY(get_array(json, "normalizers", place));
    for (const Json& part : *parts) GRACE_TRY(add(part, place));
    return {};
  }
  if (type == "Prepend") {
    std::string content = GRACE_TRY(get_string(json, "prepend", place));
    return steps_.push_back({Kind::kPrepend, std::move(content), nullptr}), Status();
  }
  if (type == "Replace") {
    Regex regex = GRACE_TRY(get_pattern(json, place));
    std::string content = GRACE_TRY(get_string(json, "content", place));
    return steps_.push_back({Kind::kReplace, std::move(content), std::make_unique<Regex>(std::move(regex))}),
           Status();
  }
  return unsupported(fmt::format("{}: type {}", place, type));
}

Result<std::string> Normalizer::normalize(std::string_view text, RegexScratch& scratch) const {
  std::string out(text);
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::kNfc:
        out = unicode_form(out, false, true);
        break;
      case Kind::kNfd:
        out = unicode_form(out, false, false);
        break;
      case Kind::kNfkc:
        out = unicode_form(out, true, true);
        break;
      case Kind::kNfkd:
        out = unicode_form(out, true, false);
        break;
      case Kind::kLowercase:
        out = lowercase(out);
        break;
      case Kind::kPrepend:
        if (!out.empty()) out.insert(0, step.content);
        break;
      case Kind::kReplace:
        out = GRACE_TRY(replace(out, *step.regex, step.content, scratch));
        break;
    }
  }
  return out;
}

}  // namespace grace
