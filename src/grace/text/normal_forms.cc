#include "grace/text/normal_forms.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "grace/base/check.h"
#include "grace/text/utf8.h"

namespace grace {
namespace {

struct Range {
  char32_t first;  // [first, last]
  char32_t last;
};

bool contains(std::span<const Range> ranges, char32_t code_point) {
  const auto after = std::ranges::upper_bound(ranges, code_point, {}, &Range::first);
  return after != ranges.begin() && code_point <= std::prev(after)->last;
}

// clang-format off
// What decomposes, composes or has a combining class today but came after Unicode 9; and U+11A7, which
// utf8proc composes though nothing does. Found, as the other tables here, by asking the reference and utf8proc
// (Unicode 15) about every code point.
constexpr Range kUnknown[] = {
    {0x7fd, 0x7fd}, {0x898, 0x89f}, {0x8ca, 0x8d3}, {0x9fe, 0x9fe}, {0xc3c, 0xc3c}, {0xd3b, 0xd3c},
    {0xeba, 0xeba}, {0x11a7, 0x11a7}, {0x1715, 0x1715}, {0x1abf, 0x1ace}, {0x1df6, 0x1dfa}, {0x32ff, 0x32ff},
    {0xa7f2, 0xa7f4}, {0xa82c, 0xa82c}, {0xab69, 0xab69}, {0x10781, 0x10785}, {0x10787, 0x107b0},
    {0x107b2, 0x107ba}, {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50},
    {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a},
    {0x11930, 0x11930}, {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943},
    {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42},
    {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1}, {0x1e030, 0x1e06d},
    {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef},
    {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9}};

// Starters that compose with what stands before them: halves of vowel signs, Hangul's vowels and finals.
constexpr Range kJoining[] = {
    {0x9be, 0x9be}, {0x9d7, 0x9d7}, {0xb3e, 0xb3e}, {0xb56, 0xb57}, {0xbbe, 0xbbe}, {0xbd7, 0xbd7},
    {0xcc2, 0xcc2}, {0xcd5, 0xcd6}, {0xd3e, 0xd3e}, {0xd57, 0xd57}, {0xdcf, 0xdcf}, {0xddf, 0xddf},
    {0x102e, 0x102e}, {0x1161, 0x1175}, {0x11a8, 0x11c2}, {0x1b35, 0x1b35}, {0x11127, 0x11127},
    {0x1133e, 0x1133e}, {0x11357, 0x11357}, {0x114b0, 0x114b0}, {0x114ba, 0x114ba}, {0x114bd, 0x114bd},
    {0x115af, 0x115af}};

// Lower case that came after Unicode 15: how far it is from the letter.
struct CaseRange {
  Range letters;
  std::int32_t distance;
};
constexpr CaseRange kLowerCase[] = {
    {{0x1c89, 0x1c89}, 1}, {{0xa7cb, 0xa7cb}, 0x264 - 0xa7cb}, {{0xa7cc, 0xa7cc}, 1}, {{0xa7ce, 0xa7ce}, 1},
    {{0xa7d2, 0xa7d2}, 1}, {{0xa7d4, 0xa7d4}, 1}, {{0xa7da, 0xa7da}, 1}, {{0xa7dc, 0xa7dc}, 0x19b - 0xa7dc},
    {{0x10d50, 0x10d65}, 0x20}, {{0x16ea0, 0x16eb8}, 0x1b}};
// clang-format on

constexpr char32_t kFirstComposing = 0x300;  // everything below is a starter that canonical forms leave alone
constexpr unsigned char kFirstComposingLead =
    0xCC;  // its first byte; no byte of a lower code point reaches it

int combining_class(char32_t code_point) {
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(code_point))->combining_class;
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
  const auto class_of = [](utf8proc_int32_t c) { return combining_class(static_cast<char32_t>(c)); };
  const auto is_starter = [&](utf8proc_int32_t c) { return class_of(c) == 0; };
  for (auto begin = code_points.begin(); begin != code_points.end();) {
    begin = std::find_if_not(begin, code_points.end(), is_starter);
    const auto end = std::find_if(begin, code_points.end(), is_starter);
    std::stable_sort(begin, end,
                     [&](utf8proc_int32_t a, utf8proc_int32_t b) { return class_of(a) < class_of(b); });
    begin = end;
  }
}

// REQUIRES: no code point of `text` is unknown to the reference.
void append_form(std::string& out, std::string_view text, NormalForm form) {
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0);
  std::vector<utf8proc_int32_t> code_points;
  code_points.reserve(text.size());
  for (std::size_t at = 0; at < text.size();)
    append_decomposition(code_points, next_code_point(text, at), static_cast<utf8proc_option_t>(options));
  order_marks(code_points);
  std::size_t count = code_points.size();
  if (form == NormalForm::kNfc || form == NormalForm::kNfkc) {
    const utf8proc_ssize_t composed =
        utf8proc_normalize_utf32(code_points.data(), static_cast<utf8proc_ssize_t>(count),
                                 static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    GRACE_CHECK(composed >= 0, "utf8proc_normalize_utf32");
    count = static_cast<std::size_t>(composed);
  }
  for (const utf8proc_int32_t c : std::span(code_points).first(count))
    append_utf8(out, static_cast<char32_t>(c));
}

// An unknown code point is a starter that nothing joins, so that what lies between two of them stands alone.
std::string form_between_unknown(std::string_view text, NormalForm form) {
  std::string out;
  out.reserve(text.size());
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    if (!is_unknown_to_normal_forms(next_code_point(text, at))) continue;
    append_form(out, text.substr(done, begin - done), form);
    out.append(text.substr(begin, at - begin));
    done = at;
  }
  append_form(out, text.substr(done), form);
  return out;
}

// NFC leaves it alone, and it joins nothing before it: text may be cut in front of it.
bool is_inert(char32_t code_point) {
  if (code_point < kFirstComposing) return true;
  const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(code_point));
  const bool plain = property->combining_class == 0 && property->decomp_seqindex == UINT16_MAX &&
                     !contains(kJoining, code_point);
  return plain || is_unknown_to_normal_forms(code_point);
}

// Rewrites only the stretches that hold something else than inert code points, each with the code point
// before it, which it may join.
std::string nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::size_t done = 0;
  std::size_t previous =
      std::string_view::npos;  // the code point before `at`, if a stretch may begin with it
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < kFirstComposingLead) {
      previous = at;
      at += utf8_length(text[at]);
      continue;
    }
    std::size_t end = at;
    const char32_t code_point = next_code_point(text, end);
    if (is_inert(code_point)) {
      previous = is_unknown_to_normal_forms(code_point) ? std::string_view::npos : at;
      at = end;
      continue;
    }
    const std::size_t begin = previous == std::string_view::npos ? at : previous;
    for (std::size_t next = end; next < text.size() && !is_inert(next_code_point(text, next));) end = next;
    out.append(text.substr(done, begin - done));
    append_form(out, text.substr(begin, end - begin), NormalForm::kNfc);
    done = at = end;
    previous = std::string_view::npos;  // what follows is inert
  }
  return std::move(out.append(text.substr(done)));
}

char32_t lower_case(char32_t code_point) {
  for (const CaseRange& range : kLowerCase)
    if (code_point >= range.letters.first && code_point <= range.letters.last)
      return static_cast<char32_t>(static_cast<std::int32_t>(code_point) + range.distance);
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point)));
}

}  // namespace

bool is_unknown_to_normal_forms(char32_t code_point) { return contains(kUnknown, code_point); }

std::string normal_form(std::string_view text, NormalForm form) {
  if (form == NormalForm::kNfc) return nfc(text);
  if (is_ascii(text)) return std::string(text);
  return form_between_unknown(text, form);
}

std::string lower_case(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (c == 0x130) {  // the one code point whose lower case is two
      out += "i\u0307";
    } else {
      append_utf8(out, lower_case(c));
    }
  }
  return out;
}

}  // namespace grace
