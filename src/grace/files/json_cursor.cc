#include "grace/files/json_cursor.h"

#include <algorithm>
#include <limits>

namespace grace {
namespace {

constexpr std::string_view kNotJson = "not JSON";
constexpr int kMaxDepth = 64;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

void JsonCursor::space() {
  while (at_ != end_ && is_space(*at_)) ++at_;
}

char JsonCursor::peek() {
  space();
  return ok() && at_ != end_ ? *at_ : '\0';
}

bool JsonCursor::take(char c) {
  if (peek() != c) return false;
  ++at_;
  return true;
}

bool JsonCursor::expect(char c) {
  if (!take(c)) fail(kNotJson);
  first_ = ok() && (c == '{' || c == '[');
  return ok();
}

bool JsonCursor::next_key(std::string_view& key) {
  if (!ok()) return false;
  if (take('}')) return first_ = false;
  if (!first_ && !expect(',')) return false;
  first_ = false;
  key = text();
  return expect(':');
}

bool JsonCursor::next_element() {
  if (!ok()) return false;
  if (take(']')) return first_ = false;
  if (!first_ && !expect(',')) return false;
  first_ = false;
  return ok();
}

std::string_view JsonCursor::text() {
  if (!take('"')) fail(kNotJson);
  if (!ok()) return {};
  const char* const begin = at_;
  while (at_ != end_ && *at_ != '"') {
    if (static_cast<unsigned char>(*at_) < 0x20) break;
    at_ += *at_ == '\\' && at_ + 1 != end_ ? 2 : 1;
  }
  if (at_ == end_ || *at_ != '"') {
    fail(kNotJson);
    return {};
  }
  return {begin, static_cast<std::size_t>(at_++ - begin)};
}

std::int64_t JsonCursor::integer() {
  const char first = peek();
  const bool negative = first == '-';
  if (negative) ++at_;
  if (at_ == end_ || !is_digit(*at_) || !ok()) {
    fail("not a whole number");
    return 0;
  }
  std::int64_t value = 0;
  bool over = false;
  for (; at_ != end_ && is_digit(*at_); ++at_)
    over = __builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *at_ - '0', &value) ||
           over;
  if (over || (at_ != end_ && (*at_ == '.' || *at_ == 'e' || *at_ == 'E')))
    fail("not a whole number of 64 bits");
  return negative ? -value : value;
}

bool JsonCursor::boolean() {
  const char first = peek();
  const std::string_view word = first == 't' ? "true" : "false";
  if (std::string_view(at_, static_cast<std::size_t>(end_ - at_)).starts_with(word)) {
    at_ += word.size();
    return first == 't' && ok();
  }
  fail("not true or false");
  return false;
}

bool JsonCursor::null() {
  if (peek() != 'n') return false;
  if (!std::string_view(at_, static_cast<std::size_t>(end_ - at_)).starts_with("null")) {
    fail(kNotJson);
    return false;
  }
  at_ += 4;
  return true;
}

void JsonCursor::skip() { skip_value(0); }

void JsonCursor::skip_value(int depth) {
  if (depth == kMaxDepth) return fail("nested deeper than 64");
  std::string_view key;
  switch (peek()) {
    case '{':
      enter('{');
      while (next_key(key)) skip_value(depth + 1);
      return;
    case '[':
      enter('[');
      while (next_element()) skip_value(depth + 1);
      return;
    case '"':
      text();
      return;
    case 't':
    case 'f':
      boolean();
      return;
    case 'n':
      null();
      return;
    default:
      skip_number();
  }
}

void JsonCursor::skip_number() {
  constexpr std::string_view kOther = "+-.eE";
  const char* const begin = at_;
  while (at_ != end_ && (is_digit(*at_) || kOther.find(*at_) != std::string_view::npos)) ++at_;
  if (at_ == begin) fail(kNotJson);
}

// `[1, 2, 3]` with the bracket still to come.
bool JsonCursor::row(std::vector<std::int32_t>& out) {
  constexpr std::int64_t kLowest = std::numeric_limits<std::int32_t>::min(),
                         kHighest = std::numeric_limits<std::int32_t>::max();
  if (!take('[')) return false;
  if (take(']')) return true;
  while (true) {
    if (at_ != end_ && !is_digit(*at_)) space();
    const bool negative = at_ != end_ && *at_ == '-';
    if (negative) ++at_;
    if (at_ == end_ || !is_digit(*at_)) return false;
    std::int64_t value = 0;
    for (; at_ != end_ && is_digit(*at_); ++at_) value = std::min(value * 10 + (*at_ - '0'), kHighest + 1);
    out.push_back(static_cast<std::int32_t>(std::clamp(negative ? -value : value, kLowest, kHighest)));
    if (at_ == end_) return false;
    if (*at_ != ',' && *at_ != ']') space();
    if (at_ == end_) return false;
    const char c = *at_++;
    if (c == ']') return true;
    if (c != ',') return false;
    if (at_ != end_ && *at_ == ' ') ++at_;
  }
}

void JsonCursor::rows(std::vector<std::int32_t>& out, std::int64_t& num_rows, std::int64_t& width) {
  num_rows = width = 0;
  if (!enter('[')) return;
  while (next_element()) {
    const std::size_t before = out.size();
    if (!row(out)) return fail("not a list of whole numbers");
    const auto length = static_cast<std::int64_t>(out.size() - before);
    if (num_rows++ == 0) width = length;
    if (length != width) return fail("rows of unequal length");
  }
}

bool JsonCursor::at_end() {
  space();
  return at_ == end_;
}

}  // namespace grace
