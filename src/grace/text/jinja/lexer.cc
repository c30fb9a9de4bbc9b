#include "grace/text/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "grace/text/jinja/python_text.h"
#include "grace/text/utf8.h"

namespace grace::jinja {
namespace {

using Kind = Token::Kind;

// Longest first.
constexpr std::array<std::string_view, 27> kOperators = {"//", "**", "==", "!=", "<=", ">=", "+", "-", "*",
                                                         "/",  "%",  "~",  "<",  ">",  "=",  ".", ":", "|",
                                                         ",",  ";",  "(",  ")",  "[",  "]",  "{", "}", "&"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Line ends as \n, and not the last one.
std::string with_plain_line_ends(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
      continue;
    }
    out.push_back('\n');
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string source, std::string_view place) : source_(std::move(source)), place_(place) {}

  Result<std::vector<Token>> run() {
    while (at_ < source_.size()) GRACE_TRY(data_and_tag());
    add(Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool next_is(std::string_view text) const { return rest().starts_with(text); }
  Error fail(std::string_view what) const {
    return invalid_input(fmt::format("{}:{}: {}", place_, line_, what));
  }
  void add(Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void advance(std::size_t count) {
    line_ += static_cast<int>(std::ranges::count(rest().substr(0, count), '\n'));
    at_ += count;
    line_starting_ = at_ > 0 && source_[at_ - 1] == '\n';
  }
  void skip_space() {
    while (at_ < source_.size()) {
      std::size_t next = at_;
      if (!is_python_space(next_code_point(source_, next))) return;
      advance(next - at_);
    }
  }

  // Text up to the next tag, as far as the tag leaves it, and the tag.
  Status data_and_tag() {
    std::size_t tag = at_;
    while (tag < source_.size() &&
           !(source_[tag] == '{' && tag + 1 < source_.size() &&
             std::string_view("{%#").find(source_[tag + 1]) != std::string_view::npos))
      ++tag;
    const std::string_view text = std::string_view(source_).substr(at_, tag - at_);
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const bool is_tag = tag < source_.size();
    add_data(is_tag ? left_of_tag(text, sign, source_[tag + 1] == '{') : text);
    advance(text.size());
    if (!is_tag) return {};
    const char kind = source_[at_ + 1];
    advance(sign == '-' || sign == '+' ? 3 : 2);
    if (kind == '#') return comment();
    if (kind == '{') return tag_body(Kind::kOutputBegin, Kind::kOutputEnd, "}}");
    if (const std::optional<std::size_t> begin = raw_begin()) return raw(*begin);
    return tag_body(Kind::kStatementBegin, Kind::kStatementEnd, "%}");
  }

  void add_data(std::string_view text) {
    if (!text.empty()) add(Kind::kData, std::string(text));
  }
  std::string_view left_of_tag(std::string_view text, char sign, bool is_output) const {
    if (sign == '-') {
      const std::string kept = strip(text, std::nullopt, false, true);
      return text.substr(0, kept.size());
    }
    if (sign == '+' || is_output) return text;
    const std::size_t line_begin = text.rfind('\n') + 1;  // npos + 1 is 0
    if (line_begin == 0 && !line_starting_) return text;
    return strip(text.substr(line_begin), std::nullopt, true, true).empty() ? text.substr(0, line_begin)
                                                                            : text;
  }

  // Moves behind a tag's end, which is next, perhaps with a sign, and behind what it swallows.
  void end_tag(std::string_view end, bool trims_line) {
    const bool strips = next_is("-");
    const bool keeps = next_is("+");
    advance(end.size() + (strips || keeps ? 1 : 0));
    if (strips) return skip_space();
    if (trims_line && !keeps && next_is("\n")) advance(1);
  }

  Status comment() {
    if (at_ == source_.size()) return {};  // Jinja sees nothing wrong in that
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string::npos) return fail("a comment without `#}`");
    const bool signed_end = end > at_ && (source_[end - 1] == '-' || source_[end - 1] == '+');
    advance(end - at_ - (signed_end ? 1 : 0));
    end_tag("#}", true);
    return {};
  }

  // Behind `raw %}`, if that is next.
  std::optional<std::size_t> raw_begin() const {
    std::size_t at = at_;
    const auto skip = [&] {
      while (at < source_.size() && is_ascii_space(source_[at])) ++at;
    };
    skip();
    if (source_.compare(at, 3, "raw") != 0) return std::nullopt;
    at += 3;
    skip();
    const bool strips = source_.compare(at, 1, "-") == 0;
    if (strips) ++at;
    if (source_.compare(at, 2, "%}") != 0) return std::nullopt;
    at += 2;
    if (strips) skip();
    return at;
  }

  Status raw(std::size_t begin) {
    advance(begin - at_);
    for (std::size_t tag = at_; (tag = source_.find("{%", tag)) != std::string::npos; tag += 2) {
      std::size_t at = tag + 2;
      const char sign = at < source_.size() ? source_[at] : '\0';
      if (sign == '-' || sign == '+') ++at;
      while (at < source_.size() && is_ascii_space(source_[at])) ++at;
      if (source_.compare(at, 6, "endraw") != 0) continue;
      at += 6;
      while (at < source_.size() && is_ascii_space(source_[at])) ++at;
      const bool signed_end = source_.compare(at, 1, "-") == 0 || source_.compare(at, 1, "+") == 0;
      if (source_.compare(at + (signed_end ? 1 : 0), 2, "%}") != 0) continue;
      add_data(left_of_tag(std::string_view(source_).substr(at_, tag - at_), sign, false));
      advance(at - at_);
      end_tag("%}", true);
      return {};
    }
    return fail("a raw block without `endraw`");
  }

  Status tag_body(Kind begin, Kind end, std::string_view end_text) {
    add(begin, "");
    std::string open;  // brackets, within which the tag does not end
    while (true) {
      skip_space();
      if (at_ == source_.size()) return fail(fmt::format("a tag without `{}`", end_text));
      const bool is_statement = end == Kind::kStatementEnd;
      const std::size_t sign = next_is("-") || (is_statement && next_is("+")) ? 1 : 0;
      if (open.empty() && rest().substr(sign).starts_with(end_text)) {
        add(end, "");
        end_tag(end_text, is_statement);
        return {};
      }
      GRACE_TRY(token(open));
    }
  }

  Status token(std::string& open) {
    const char c = source_[at_];
    if (c == '"' || c == '\'') return string(c);
    if (is_digit(c)) return number();
    if (begins_name(c)) {
      std::size_t size = 1;
      while (at_ + size < source_.size() && (begins_name(rest()[size]) || is_digit(rest()[size]))) ++size;
      add(Kind::kName, std::string(rest().substr(0, size)));
      return advance(size), Status();
    }
    for (const std::string_view known : kOperators) {
      if (!next_is(known)) continue;
      GRACE_TRY(balance(c, open));
      add(Kind::kOperator, std::string(known));
      return advance(known.size()), Status();
    }
    return fail(fmt::format("`{}` has no meaning in a tag", rest().substr(0, utf8_length(c))));
  }

  Status balance(char c, std::string& open) const {
    static constexpr std::string_view kOpen = "([{";
    static constexpr std::string_view kClose = ")]}";
    if (kOpen.find(c) != std::string_view::npos) open.push_back(c);
    const std::size_t closes = kClose.find(c);
    if (closes == std::string_view::npos) return {};
    if (open.empty() || open.back() != kOpen[closes]) return fail(fmt::format("`{}` closes nothing", c));
    open.pop_back();
    return {};
  }

  Status number() {
    std::size_t size = 0;
    const auto digits = [&] {
      const std::size_t begin = size;
      while (size < rest().size() && (is_digit(rest()[size]) || (rest()[size] == '_' && size > begin)))
        ++size;
      return size > begin;
    };
    if (rest().size() > 1 && rest()[0] == '0' &&
        std::string_view("xXoObB").find(rest()[1]) != std::string_view::npos)
      return unsupported(fmt::format("{}:{}: a number that is not decimal", place_, line_));
    digits();
    bool is_float = false;
    const auto at = [&](std::size_t i) { return i < rest().size() ? rest()[i] : '\0'; };
    if (at(size) == '.' && is_digit(at(size + 1))) {
      is_float = true;
      ++size;
      digits();
    }
    if (at(size) == 'e' || at(size) == 'E') {
      const std::size_t sign = at(size + 1) == '+' || at(size + 1) == '-' ? 1 : 0;
      if (is_digit(at(size + 1 + sign))) {
        is_float = true;
        size += 1 + sign;
        digits();
      }
    }
    std::string text(rest().substr(0, size));
    std::erase(text, '_');
    add(is_float ? Kind::kFloat : Kind::kInteger, std::move(text));
    return advance(size), Status();
  }

  Status string(char quote) {
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return fail("a string without an end");
    const std::string_view inner = std::string_view(source_).substr(at_ + 1, end - at_ - 1);
    std::string text;
    for (std::size_t at = 0; at < inner.size();) {
      if (inner[at] == '\\') {
        at = GRACE_TRY(escape(inner, at + 1, text));
      } else {
        text.push_back(inner[at++]);
      }
    }
    add(Kind::kString, std::move(text));
    return advance(end + 1 - at_), Status();
  }

  // Python's. Returns where it ends.
  Result<std::size_t> escape(std::string_view inner, std::size_t at, std::string& text) const {
    static constexpr std::string_view kEscapes = "abfnrtv\\'\"";
    static constexpr std::string_view kEscaped = "\a\b\f\n\r\t\v\\'\"";
    const char c = inner[at];
    const std::size_t known = kEscapes.find(c);
    if (known != std::string_view::npos) return text.push_back(kEscaped[known]), at + 1;
    if (c == '\n') return at + 1;
    if (c == 'N') return unsupported(fmt::format("{}:{}: `\\N` in a string", place_, line_));
    const bool octal = c >= '0' && c <= '7';
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0 && !octal) return text.push_back('\\'), at;
    std::uint32_t value = 0;
    std::size_t end = octal ? at : at + 1;
    const std::size_t most = octal ? at + 3 : end + digits;
    for (; end < std::min(most, inner.size()); ++end) {
      if (octal ? inner[end] < '0' || inner[end] > '7' : !is_hex(inner[end])) break;
      const char digit = inner[end];
      value = value * (octal ? 8 : 16) +
              static_cast<std::uint32_t>(is_digit(digit) ? digit - '0' : (digit | 32) - 'a' + 10);
    }
    if ((!octal && end != most) || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000))
      return fail("an escape that stands for no code point");
    append_utf8(text, value);
    return end;
  }

  std::string source_;
  std::string_view place_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source, std::string_view place) {
  return Lexer(with_plain_line_ends(source), place).run();
}

}  // namespace grace::jinja
