// Oniguruma's syntax to PCRE2's. Only what both read alike, or what can be rewritten exactly, passes; the
// rest is refused by name, because a pattern that silently means something else gives other tokens.
#include <fmt/format.h>

#include <array>

#include "grace/text/regex.h"
#include "grace/text/utf8.h"

namespace grace {
namespace {

// Unicode's White_Space and its complement, for use inside a class. PCRE2's own \s also holds U+180E.
constexpr std::string_view kSpaces =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{"
    "3000}";
constexpr std::string_view kNoSpaces =
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-"
    "\\x{2027}"
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{d7ff}\\x{e000}-\\x{10ffff}";

constexpr std::array<std::string_view, 10> kGroups = {
    "(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:", "(?i)", "(?-i)"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view place) : pattern_(pattern), place_(place) {}

  Result<std::string> run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        GRACE_TRY(escape(/*in_class=*/false));
      } else if (c == '[') {
        GRACE_TRY(character_class());
      } else if (c == '(') {
        GRACE_TRY(group());
      } else if (c == '{') {
        GRACE_TRY(interval());
      } else {
        copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  char peek(std::size_t ahead) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  bool next_is(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  void copy(std::size_t count) {
    out_.append(pattern_.substr(at_, count));
    at_ += count;
  }
  Error refuse(std::string_view construct) const {
    return unsupported(fmt::format("{}: pattern `{}`: `{}` at byte {}", place_, pattern_, construct, at_));
  }
  Error malformed(std::string_view what) const {
    return invalid_input(fmt::format("{}: pattern `{}`: {} at byte {}", place_, pattern_, what, at_));
  }

  Status group() {
    if (next_is("(*")) return refuse("(*");
    if (!next_is("(?")) return copy(1), Status();
    for (const std::string_view opening : kGroups)
      if (next_is(opening)) return copy(opening.size()), Status();
    return refuse(pattern_.substr(at_, 3));
  }

  // {n}, {n,}, {n,m}. Oniguruma reads {n,m}+ as a repeated group and {n}? as an optional one; PCRE2 does not.
  Status interval() {
    std::size_t end = at_ + 1;
    const auto digits = [&] {
      const std::size_t begin = end;
      while (end < pattern_.size() && is_digit(pattern_[end])) ++end;
      return end > begin;
    };
    if (peek(1) == ',') return refuse("{,");
    if (!digits()) return copy(1), Status();
    const bool exact = end >= pattern_.size() || pattern_[end] != ',';
    if (!exact) {
      ++end;
      digits();
    }
    if (end >= pattern_.size() || pattern_[end] != '}') return copy(1), Status();
    copy(end + 1 - at_);
    if (peek(0) == '+' || (exact && peek(0) == '?')) return refuse(fmt::format("}}{}", peek(0)));
    return {};
  }

  Status character_class() {
    copy(1);
    if (peek(0) == '^') copy(1);
    if (peek(0) == ']') return refuse("[]");
    const std::size_t first = at_;
    while (at_ < pattern_.size() && pattern_[at_] != ']') {
      if (pattern_[at_] == '[') return refuse("[[");
      if (next_is("&&")) return refuse("&&");
      if (pattern_[at_] != '\\') {
        copy(1);
        continue;
      }
      const bool ends_range = at_ > first + 1 && pattern_[at_ - 1] == '-' && pattern_[at_ - 2] != '\\';
      const bool is_set = std::string_view("sSdDpP").find(peek(1)) != std::string_view::npos;
      if (is_set && ends_range) return refuse(pattern_.substr(at_ - 1, 3));
      GRACE_TRY(escape(/*in_class=*/true));
      if (is_set && peek(0) == '-') {  // a literal, lest it make a range with the last of the rewritten set
        out_ += "\\-";
        ++at_;
      }
    }
    if (at_ == pattern_.size()) return malformed("a class without `]`");
    copy(1);
    return {};
  }

  void set(bool in_class, bool negated, std::string_view members) {
    if (in_class) {
      out_ += members;
    } else {
      out_ += fmt::format("[{}{}]", negated ? "^" : "", members);
    }
  }

  Status escape(bool in_class) {
    const char c = peek(1);
    if (at_ + 1 >= pattern_.size()) return malformed("a lone `\\`");
    if (c == 's' || c == 'S') {
      set(in_class, c == 'S', in_class && c == 'S' ? kNoSpaces : kSpaces);
      at_ += 2;
      return {};
    }
    if (c == 'd' || c == 'D') return at_ += 2, property("Nd", c == 'D', in_class);
    if (c == 'p' || c == 'P') return property_escape(in_class);
    if (c == 'v') return out_ += "\\x{b}", at_ += 2, Status();
    if (c == 'x' || c == 'u') return code_point_escape();
    const std::string_view same = in_class ? "rntfae" : "rntfaeAzZ";
    if (is_letter(c) || is_digit(c)) {
      if (same.find(c) == std::string_view::npos) return refuse(pattern_.substr(at_, 2));
      return copy(2), Status();
    }
    copy(1 + utf8_length(c));
    return {};
  }

  // \x{H..} and \uHHHH.
  Status code_point_escape() {
    std::size_t begin = at_ + 2;
    std::size_t end = begin;
    const bool braced = peek(1) == 'x' && peek(2) == '{';
    if (braced) end = ++begin;
    while (end < pattern_.size() && is_hex(pattern_[end]) && (braced || end < begin + 4)) ++end;
    const bool closed =
        braced ? end < pattern_.size() && pattern_[end] == '}' : peek(1) == 'u' && end == begin + 4;
    if (!closed || end == begin) return refuse(pattern_.substr(at_, 3));
    out_ += fmt::format("\\x{{{}}}", pattern_.substr(begin, end - begin));
    at_ = end + (braced ? 1 : 0);
    return {};
  }

  Status property_escape(bool in_class) {
    bool negated = peek(1) == 'P';
    if (peek(2) != '{') return refuse(pattern_.substr(at_, 3));
    const std::size_t end = pattern_.find('}', at_);
    if (end == std::string_view::npos) return malformed("a property without `}`");
    std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    for (const char c : name)
      if (!is_letter(c) && c != '_') return refuse(pattern_.substr(at_, end + 1 - at_));
    if (name.empty()) return refuse("\\p{}");
    at_ = end + 1;
    return property(name, negated, in_class);
  }

  // One or two letters are a general category; longer names are a script, which for PCRE2 is another thing
  // than its extensions.
  Status property(std::string_view name, bool negated, bool in_class) {
    const std::string spelled = name.size() <= 2 ? std::string(name) : fmt::format("sc:{}", name);
    if (in_class && negated) {
      out_ += fmt::format("\\P{{{}}}", spelled);
    } else {
      set(in_class, negated, fmt::format("\\p{{{}}}{}", spelled, unicode_additions(name)));
    }
    return {};
  }

  std::string_view pattern_;
  std::string_view place_;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

Result<std::string> pcre_of_oniguruma(std::string_view pattern, std::string_view place) {
  return Translator(pattern, place).run();
}

}  // namespace grace
