// Values as json.dumps writes them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "grace/text/jinja/python_text.h"
#include "grace/text/jinja/value.h"
#include "grace/text/utf8.h"

namespace grace::jinja {
namespace {

void append_unicode_escape(std::string& out, char32_t c) {
  auto value = static_cast<std::uint32_t>(c);
  if (value >= 0x10000) {
    value -= 0x10000;
    out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (value >> 10), 0xDC00 + (value & 0x3FF));
  } else {
    out += fmt::format("\\u{:04x}", value);
  }
}

void append_json_string(std::string& out, std::string_view text, bool ensure_ascii) {
  static constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t";
  static constexpr std::string_view kEscapes = "\"\\bfnrt";
  out.push_back('"');
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    const std::size_t known = c < 128 ? kEscaped.find(static_cast<char>(c)) : std::string_view::npos;
    if (known != std::string_view::npos) {
      out.push_back('\\');
      out.push_back(kEscapes[known]);
    } else if (c < 0x20 || (ensure_ascii && c > 0x7E)) {
      append_unicode_escape(out, c);
    } else {
      append_utf8(out, c);
    }
  }
  out.push_back('"');
}

std::string json_number(const Value& value) {
  if (value.is<bool>()) return value.whole() != 0 ? "true" : "false";
  if (value.is_whole()) return std::to_string(value.whole());
  const double number = value.number();
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number < 0 ? "-Infinity" : "Infinity";
  return repr_of_float(number);
}

class Writer {
 public:
  explicit Writer(const JsonStyle& style) : style_(style) {}

  Status write(const Value& value) {
    if (value.is_string()) return append_json_string(out, value.text(), style_.ensure_ascii), Status();
    if (value.is_none()) return out += "null", Status();
    if (value.is_number()) return out += json_number(value), Status();
    if (const Dict* dict = value.dict()) return write_dict(*dict);
    const Sequence* sequence = value.sequence();
    if (sequence == nullptr || !sequence->has_index())
      return invalid_input(fmt::format("a {} is not JSON", type_name(value)));
    return write_between('[', ']', sequence->items.size(),
                         [&](std::size_t i) { return write(sequence->items[i]); });
  }

  std::string out;

 private:
  template <typename WriteItem>
  Status write_between(char open, char close, std::size_t count, const WriteItem& write_item) {
    out.push_back(open);
    ++depth_;
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) out += style_.item_separator;
      new_line();
      GRACE_TRY(write_item(i));
    }
    --depth_;
    if (count > 0) new_line();
    out.push_back(close);
    return {};
  }
  void new_line() {
    if (!style_.has_indent) return;
    out.push_back('\n');
    for (int i = 0; i < depth_; ++i) out += style_.indent;
  }

  Status write_dict(const Dict& dict) {
    std::vector<std::size_t> order(dict.items.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    if (style_.sort_keys) GRACE_TRY(sort_by_key(dict, order));
    return write_between('{', '}', order.size(), [&](std::size_t i) -> Status {
      const auto& [key, item] = dict.items[order[i]];
      if (key.is_string()) {
        append_json_string(out, key.text(), style_.ensure_ascii);
      } else if (key.is_number() || key.is_none()) {
        append_json_string(out, key.is_none() ? "null" : json_number(key), style_.ensure_ascii);
      } else {
        return invalid_input(fmt::format("a {} is no key of a JSON object", type_name(key)));
      }
      out += style_.key_separator;
      return write(item);
    });
  }
  static Status sort_by_key(const Dict& dict, std::vector<std::size_t>& order) {
    for (std::size_t i = 1; i < order.size(); ++i)
      GRACE_TRY(less(dict.items[0].first, dict.items[i].first));  // all strings, or all numbers
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
      const Result<bool> before = less(dict.items[a].first, dict.items[b].first);
      return before.ok() && before.value();
    });
    return {};
  }

  const JsonStyle& style_;
  int depth_ = 0;
};

}  // namespace

Result<std::string> to_json(const Value& value, const JsonStyle& style) {
  Writer writer(style);
  GRACE_TRY(writer.write(value));
  return std::move(writer.out);
}

}  // namespace grace::jinja
