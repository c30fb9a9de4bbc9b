// The filters that chat templates use, as Jinja has them, and `tojson` as the reference has it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "grace/text/jinja/interpreter.h"
#include "grace/text/jinja/python_text.h"

namespace grace::jinja {
namespace {

using Bound = std::vector<std::optional<Value>>;

constexpr std::size_t kMostSpacing = 64;

Error no_use(std::string_view filter, const Value& input) {
  if (input.is_undefined()) return undefined_error(input);
  return invalid_input(fmt::format("filter `{}` of a {}", filter, type_name(input)));
}

bool truth_of(const std::optional<Value>& value, bool fallback) {
  return value.has_value() ? is_true(*value) : fallback;
}
std::int64_t whole_of(const std::optional<Value>& value, std::int64_t fallback) {
  return value.has_value() && value->is_whole() ? value->whole() : fallback;
}

// What is compared: text by its lower case unless `case_sensitive`.
Value key_of(const Value& value, bool case_sensitive) {
  return value.is_string() && !case_sensitive ? Value::of(lower(value.text())) : value;
}

// `a.b.0` of each item.
Result<Value> attribute_of(Interpreter& in, const Value& item, const Value& path) {
  if (path.is_whole()) return in.item(item, path);
  if (!path.is_string()) return unsupported(fmt::format("a {} as an attribute", type_name(path)));
  Value value = item;
  for (const std::string& part : split(path.text(), ".", -1)) {
    const bool is_index =
        !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
    value = GRACE_TRY(in.item(value, is_index ? Value::of(std::int64_t{std::stol(part)}) : Value::of(part)));
  }
  return value;
}

Result<std::vector<Value>> keys_of(Interpreter& in, const std::vector<Value>& items,
                                   const std::optional<Value>& attribute, bool case_sensitive) {
  std::vector<Value> keys;
  for (const Value& item : items) {
    const bool whole_item = !attribute.has_value() || attribute->is_none();
    const Value key = GRACE_TRY(whole_item ? Result<Value>(item) : attribute_of(in, item, *attribute));
    keys.push_back(key_of(key, case_sensitive));
  }
  return keys;
}

Result<Value> length(Interpreter&, const Value& input, const Bound&) {
  std::size_t size = 0;
  if (input.is_string()) {
    size = length_in_code_points(input.text());
  } else if (const Dict* dict = input.dict()) {
    size = dict->items.size();
  } else if (const Sequence* sequence = input.sequence(); sequence != nullptr && sequence->has_length()) {
    size = sequence->items.size();
  } else if (!input.is_undefined()) {
    return no_use("length", input);
  }
  return Value::of(static_cast<std::int64_t>(size));
}

Result<Value> join(Interpreter& in, const Value& input, const Bound& bound) {
  const std::string between = bound[0].has_value() ? GRACE_TRY(in.text_of(*bound[0])) : std::string();
  const std::vector<Value> items = GRACE_TRY(in.items_of(input));
  std::string out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const bool whole_item = !bound[1].has_value() || bound[1]->is_none();
    const Value item =
        GRACE_TRY(whole_item ? Result<Value>(items[i]) : attribute_of(in, items[i], *bound[1]));
    const std::string text = GRACE_TRY(in.text_of(item));
    GRACE_TRY(in.spend(text.size() + between.size()));
    if (i > 0) out += between;
    out += text;
  }
  return Value::of(std::move(out));
}

Result<Value> fallback(Interpreter&, const Value& input, const Bound& bound) {
  const bool missing = input.is_undefined() || (truth_of(bound[1], false) && !is_true(input));
  if (!missing) return input;
  return bound[0].has_value() ? *bound[0] : Value::of(std::string());
}

Result<Value> first(Interpreter& in, const Value& input, const Bound&) {
  const std::vector<Value> items = GRACE_TRY(in.items_of(input));
  return items.empty() ? Value::undefined("no first item, the sequence is empty") : items.front();
}

Result<Value> last(Interpreter& in, const Value& input, const Bound&) {
  const Sequence* sequence = input.sequence();
  if (sequence != nullptr && !sequence->has_length()) return no_use("last", input);
  const std::vector<Value> items = GRACE_TRY(in.items_of(input));
  return items.empty() ? Value::undefined("no last item, the sequence is empty") : items.back();
}

Result<Value> list(Interpreter& in, const Value& input, const Bound&) {
  return in.made(Sequence::Kind::kList, GRACE_TRY(in.items_of(input)));
}

Result<Value> items(Interpreter& in, const Value& input, const Bound&) {
  const Dict* dict = input.dict();
  if (dict == nullptr && !input.is_undefined()) return no_use("items", input);
  std::vector<Value> pairs;
  if (dict != nullptr)
    for (const auto& [key, value] : dict->items)
      pairs.push_back(GRACE_TRY(in.made(Sequence::Kind::kTuple, {key, value})));
  return in.made(Sequence::Kind::kIterator, std::move(pairs));
}

Result<Value> reverse(Interpreter& in, const Value& input, const Bound&) {
  if (input.is_string()) {
    std::u32string points = code_points(input.text());
    std::ranges::reverse(points);
    return in.made(utf8(points));
  }
  std::vector<Value> all = GRACE_TRY(in.items_of(input));
  std::ranges::reverse(all);
  return in.made(Sequence::Kind::kIterator, std::move(all));
}

// Stable; items in descending order keep the order of equals too.
Result<std::vector<Value>> sorted(Interpreter& in, std::vector<Value> values, const std::vector<Value>& keys,
                                  bool descending) {
  for (const Value& key : keys) GRACE_TRY(in.spend(16 * weight_of(key)));
  std::vector<std::size_t> order(values.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (std::size_t i = 1; i < keys.size(); ++i) GRACE_TRY(less(keys[0], keys[i]));  // all of one kind
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    const Result<bool> before = descending ? less(keys[b], keys[a]) : less(keys[a], keys[b]);
    return before.ok() && before.value();
  });
  std::vector<Value> out;
  for (const std::size_t i : order) out.push_back(std::move(values[i]));
  return out;
}

Result<Value> sort(Interpreter& in, const Value& input, const Bound& bound) {
  std::vector<Value> all = GRACE_TRY(in.items_of(input));
  const std::vector<Value> keys = GRACE_TRY(keys_of(in, all, bound[2], truth_of(bound[1], false)));
  std::vector<Value> out = GRACE_TRY(sorted(in, std::move(all), keys, truth_of(bound[0], false)));
  return in.made(Sequence::Kind::kList, std::move(out));
}

Result<Value> dictsort(Interpreter& in, const Value& input, const Bound& bound) {
  const Dict* dict = input.dict();
  if (dict == nullptr) return no_use("dictsort", input);
  const bool by_value = bound[1].has_value() && equal(*bound[1], Value::of(std::string("value")));
  std::vector<Value> pairs;
  std::vector<Value> keys;
  for (const auto& [key, value] : dict->items) {
    pairs.push_back(GRACE_TRY(in.made(Sequence::Kind::kTuple, {key, value})));
    keys.push_back(key_of(by_value ? value : key, truth_of(bound[0], false)));
  }
  std::vector<Value> out = GRACE_TRY(sorted(in, std::move(pairs), keys, truth_of(bound[2], false)));
  return in.made(Sequence::Kind::kList, std::move(out));
}

Result<Value> unique(Interpreter& in, const Value& input, const Bound& bound) {
  std::vector<Value> all = GRACE_TRY(in.items_of(input));
  const std::vector<Value> keys = GRACE_TRY(keys_of(in, all, bound[1], truth_of(bound[0], false)));
  std::vector<Value> out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    GRACE_TRY(in.spend(i * weight_of(keys[i])));
    const auto here = keys.begin() + static_cast<std::ptrdiff_t>(i);
    const bool seen = std::any_of(keys.begin(), here, [&](const Value& key) { return equal(key, *here); });
    if (!seen) out.push_back(std::move(all[i]));
  }
  return in.made(Sequence::Kind::kIterator, std::move(out));
}

Result<Value> extreme(Interpreter& in, const Value& input, const Bound& bound, bool largest) {
  std::vector<Value> all = GRACE_TRY(in.items_of(input));
  if (all.empty()) return Value::undefined("no aggregated item, the sequence is empty");
  const std::vector<Value> keys = GRACE_TRY(keys_of(in, all, bound[1], truth_of(bound[0], false)));
  for (const Value& key : keys) GRACE_TRY(in.spend(weight_of(key)));
  std::size_t best = 0;
  for (std::size_t i = 1; i < all.size(); ++i) {
    const bool better = GRACE_TRY(largest ? less(keys[best], keys[i]) : less(keys[i], keys[best]));
    if (better) best = i;
  }
  return all[best];
}
Result<Value> min(Interpreter& in, const Value& input, const Bound& bound) {
  return extreme(in, input, bound, false);
}
Result<Value> max(Interpreter& in, const Value& input, const Bound& bound) {
  return extreme(in, input, bound, true);
}

Result<Value> sum(Interpreter& in, const Value& input, const Bound& bound) {
  Value total = bound[1].value_or(Value::of(std::int64_t{0}));
  const std::vector<Value> all = GRACE_TRY(in.items_of(input));
  for (const Value& item : all) {
    const bool whole_item = !bound[0].has_value() || bound[0]->is_none();
    const Value value = GRACE_TRY(whole_item ? Result<Value>(item) : attribute_of(in, item, *bound[0]));
    total = GRACE_TRY(in.binary("+", total, value));
  }
  return total;
}

Result<std::optional<std::string>> chars_of(Interpreter& in, const std::optional<Value>& value) {
  if (!value.has_value() || value->is_none()) return std::optional<std::string>();
  return std::optional<std::string>(GRACE_TRY(in.text_of(*value)));
}

Result<Value> trim(Interpreter& in, const Value& input, const Bound& bound) {
  const std::optional<std::string> chars = GRACE_TRY(chars_of(in, bound[0]));
  const std::string text = GRACE_TRY(in.text_of(input));
  return in.made(strip(text, chars, true, true), input.is_markup());
}

template <std::string (*Change)(std::string_view)>
Result<Value> changed(Interpreter& in, const Value& input, const Bound&) {
  const std::string text = GRACE_TRY(in.text_of(input));
  return in.made(Change(text), input.is_markup());
}

Result<Value> replaced(Interpreter& in, const Value& input, const Bound& bound) {
  if (!bound[0].has_value() || !bound[1].has_value())
    return invalid_input("filter `replace` takes two texts");
  const std::string text = GRACE_TRY(in.text_of(input));
  const std::string old = GRACE_TRY(in.text_of(*bound[0]));
  const std::string with = GRACE_TRY(in.text_of(*bound[1]));
  GRACE_TRY(in.spend((text.size() + 1) * (with.size() + 1) / (old.size() + 1)));
  return in.made(replace(text, old, with, whole_of(bound[2], -1)), input.is_markup());
}

Result<Value> indent(Interpreter& in, const Value& input, const Bound& bound) {
  std::string indention(4, ' ');
  if (bound[0].has_value()) {
    if (!bound[0]->is_whole() && !bound[0]->is_string()) return no_use("indent", *bound[0]);
    const std::int64_t width =
        bound[0]->is_whole() ? std::clamp<std::int64_t>(bound[0]->whole(), 0, 1 << 20) : 0;
    indention = bound[0]->is_whole() ? std::string(static_cast<std::size_t>(width), ' ') : bound[0]->text();
  }
  const bool blank = truth_of(bound[2], false);
  const std::string text = GRACE_TRY(in.text_of(input));
  const std::vector<std::string> lines = split_lines(text + "\n");
  GRACE_TRY(in.spend(lines.size() * (indention.size() + sizeof(std::string))));
  std::string out;
  if (truth_of(bound[1], false)) out = indention;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += "\n";
    if (i > 0 && (blank || !lines[i].empty())) out += indention;
    out += lines[i];
  }
  return in.made(std::move(out), input.is_markup());
}

Result<Value> tojson(Interpreter& in, const Value& input, const Bound& bound) {
  JsonStyle style;
  style.ensure_ascii = truth_of(bound[0], false);
  style.sort_keys = truth_of(bound[3], false);
  if (bound[1].has_value() && !bound[1]->is_none()) {
    style.has_indent = true;
    style.item_separator.assign(1, ',');
    if (!bound[1]->is_whole() && !bound[1]->is_string()) return no_use("tojson", *bound[1]);
    const std::int64_t width = bound[1]->is_whole() ? std::clamp<std::int64_t>(bound[1]->whole(), 0, 64) : 0;
    style.indent =
        bound[1]->is_whole() ? std::string(static_cast<std::size_t>(width), ' ') : bound[1]->text();
  }
  if (bound[2].has_value() && !bound[2]->is_none()) {
    const std::vector<Value> separators = GRACE_TRY(in.items_of(*bound[2]));
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string())
      return invalid_input("filter `tojson`: `separators` are two texts");
    style.item_separator = separators[0].text();
    style.key_separator = separators[1].text();
  }
  const std::size_t longest =
      std::max({style.indent.size(), style.item_separator.size(), style.key_separator.size()});
  if (longest > kMostSpacing)
    return unsupported(fmt::format("filter `tojson` with over {} bytes between items", kMostSpacing));
  GRACE_TRY(in.spend((style.has_indent ? 8 : 2) * weight_of(input)));
  return in.made(GRACE_TRY(to_json(input, style)));
}

// Python's int() of a text: white space around, a sign, digits with single underscores between.
std::optional<std::int64_t> whole_of_text(std::string_view text) {
  const std::string bare = strip(text, std::nullopt, true, true);
  const std::size_t sign = bare.starts_with('-') || bare.starts_with('+') ? 1 : 0;
  std::string digits;
  if (bare.starts_with('-')) digits.push_back('-');
  for (std::size_t i = sign; i < bare.size(); ++i) {
    const bool joins = bare[i] == '_' && i > sign && bare[i - 1] != '_' && i + 1 < bare.size();
    if (!joins) digits.push_back(bare[i]);
  }
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

std::optional<double> real_of_text(std::string_view text) {
  std::string bare = lower(strip(text, std::nullopt, true, true));
  if (bare.starts_with('+')) bare = bare.substr(1);
  if (bare.empty() || bare.find_first_of("xp") != std::string::npos) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(bare.data(), bare.data() + bare.size(), value);
  if (error != std::errc() || end != bare.data() + bare.size()) return std::nullopt;
  return value;
}

Result<Value> to_whole(Interpreter&, const Value& input, const Bound& bound) {
  if (whole_of(bound[1], 10) != 10) return unsupported("filter `int` with another base than 10");
  if (input.is_whole()) return Value::of(input.whole());
  std::optional<double> real;
  if (input.is_number()) real = input.number();
  if (input.is_string()) {
    if (const std::optional<std::int64_t> whole = whole_of_text(input.text())) return Value::of(*whole);
    real = real_of_text(input.text());
  }
  if (real.has_value() && std::isfinite(*real)) {
    if (std::abs(*real) >= 9.2e18) return unsupported("an integer of over 64 bits");
    return Value::of(static_cast<std::int64_t>(*real));
  }
  if (input.is_undefined()) return undefined_error(input);
  return bound[0].value_or(Value::of(std::int64_t{0}));
}

Result<Value> to_real(Interpreter&, const Value& input, const Bound& bound) {
  if (input.is_number()) return Value::of(input.number());
  if (input.is_string())
    if (const std::optional<double> real = real_of_text(input.text())) return Value::of(*real);
  if (input.is_undefined()) return undefined_error(input);
  return bound[0].value_or(Value::of(0.0));
}

Result<Value> to_string(Interpreter& in, const Value& input, const Bound&) {
  if (input.is_string()) return input;
  return in.made(GRACE_TRY(in.text_of(input)));
}

Result<Value> safe(Interpreter& in, const Value& input, const Bound&) {
  return in.made(GRACE_TRY(in.text_of(input)), true);
}

Result<Value> escaped(Interpreter& in, const Value& input, const Bound&) {
  if (input.is_markup()) return input;
  const std::string text = GRACE_TRY(in.text_of(input));
  return in.made(escape_html(text), true);
}

Result<Value> absolute(Interpreter& in, const Value& input, const Bound&) {
  if (!input.is_number()) return no_use("abs", input);
  return input.number() < 0 ? in.binary("-", Value::of(std::int64_t{0}), input)
                            : in.binary("+", Value::of(std::int64_t{0}), input);
}

// To even, as Python rounds.
Result<Value> rounded(Interpreter& in, const Value& input, const Bound& bound) {
  if (!input.is_number()) return no_use("round", input);
  std::string method = "common";
  if (bound[1].has_value()) method = GRACE_TRY(in.text_of(*bound[1]));
  if (whole_of(bound[0], 0) != 0) return unsupported("filter `round` with a precision");
  const double value = input.number();
  if (method == "ceil") return Value::of(std::ceil(value));
  if (method == "floor") return Value::of(std::floor(value));
  if (method != "common") return invalid_input("filter `round`: the method is common, ceil or floor");
  return Value::of(std::nearbyint(value));
}

Result<Value> attr(Interpreter& in, const Value& input, const Bound& bound) {
  if (!bound[0].has_value() || !bound[0]->is_string()) return invalid_input("filter `attr` takes a name");
  if (input.dict() != nullptr) return unsupported("filter `attr` of a dict");
  return in.attribute(input, bound[0]->text());
}

struct Filter {
  std::string_view name;
  Result<Value> (*run)(Interpreter&, const Value&, const Bound&);
  std::array<std::string_view, 4> parameters{};
};

constexpr Filter kFilters[] = {
    {"abs", absolute, {}},
    {"attr", attr, {"name"}},
    {"capitalize", changed<capitalize>, {}},
    {"count", length, {}},
    {"d", fallback, {"default_value", "boolean"}},
    {"default", fallback, {"default_value", "boolean"}},
    {"dictsort", dictsort, {"case_sensitive", "by", "reverse"}},
    {"e", escaped, {}},
    {"escape", escaped, {}},
    {"first", first, {}},
    {"float", to_real, {"default"}},
    {"indent", indent, {"width", "first", "blank"}},
    {"int", to_whole, {"default", "base"}},
    {"items", items, {}},
    {"join", join, {"d", "attribute"}},
    {"last", last, {}},
    {"length", length, {}},
    {"list", list, {}},
    {"lower", changed<lower>, {}},
    {"max", max, {"case_sensitive", "attribute"}},
    {"min", min, {"case_sensitive", "attribute"}},
    {"replace", replaced, {"old", "new", "count"}},
    {"reverse", reverse, {}},
    {"round", rounded, {"precision", "method"}},
    {"safe", safe, {}},
    {"sort", sort, {"reverse", "case_sensitive", "attribute"}},
    {"string", to_string, {}},
    {"sum", sum, {"attribute", "start"}},
    {"title", changed<title_of_filter>, {}},
    {"tojson", tojson, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", trim, {"chars"}},
    {"unique", unique, {"case_sensitive", "attribute"}},
    {"upper", changed<upper>, {}},
};

// map: another filter, or an attribute, of each item.
Result<Value> map(Interpreter& in, const Value& input, const Arguments& arguments) {
  const std::vector<Value> all = GRACE_TRY(in.items_of(input));
  std::vector<Value> out;
  if (!arguments.positional.empty()) {
    if (!arguments.positional[0].is_string()) return invalid_input("filter `map` takes a filter's name");
    const Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
    for (const Value& item : all)
      out.push_back(GRACE_TRY(in.filter(arguments.positional[0].text(), item, rest)));
    return in.made(Sequence::Kind::kIterator, std::move(out));
  }
  static constexpr std::array<std::string_view, 2> kParameters = {"attribute", "default"};
  const Bound bound = GRACE_TRY(bind_arguments(arguments, kParameters));
  if (!bound[0].has_value()) return invalid_input("filter `map` takes a filter's name or an attribute");
  for (const Value& item : all) {
    Value value = GRACE_TRY(attribute_of(in, item, *bound[0]));
    out.push_back(value.is_undefined() && bound[1].has_value() ? *bound[1] : std::move(value));
  }
  return in.made(Sequence::Kind::kIterator, std::move(out));
}

// select and reject; with `by_attribute`, selectattr and rejectattr.
Result<Value> select(Interpreter& in, const Value& input, const Arguments& arguments, bool by_attribute,
                     bool keeps) {
  const std::vector<Value> all = GRACE_TRY(in.items_of(input));
  const std::size_t skipped = by_attribute ? 1 : 0;
  if (arguments.positional.size() < skipped) return invalid_input("an attribute's name is missing");
  const bool has_test = arguments.positional.size() > skipped;
  if (has_test && !arguments.positional[skipped].is_string())
    return invalid_input("a test's name is no text");
  Arguments rest;
  rest.named = arguments.named;
  if (has_test) {
    const auto begin = arguments.positional.begin() + static_cast<std::ptrdiff_t>(skipped) + 1;
    rest.positional.assign(begin, arguments.positional.end());
  }
  std::vector<Value> out;
  for (const Value& item : all) {
    const Value value =
        GRACE_TRY(by_attribute ? attribute_of(in, item, arguments.positional[0]) : Result<Value>(item));
    const bool holds = GRACE_TRY(has_test ? in.test(arguments.positional[skipped].text(), value, rest)
                                          : Result<bool>(is_true(value)));
    if (holds == keeps) out.push_back(item);
  }
  return in.made(Sequence::Kind::kIterator, std::move(out));
}

}  // namespace

Result<Value> Interpreter::filter(const std::string& name, const Value& input, const Arguments& arguments) {
  GRACE_TRY(spend(input.is_string() ? 1 + input.text().size() / 8 : 1));
  if (name == "map") return map(*this, input, arguments);
  if (name == "select" || name == "reject") return select(*this, input, arguments, false, name == "select");
  if (name == "selectattr" || name == "rejectattr")
    return select(*this, input, arguments, true, name == "selectattr");
  const Filter* found = std::ranges::find(kFilters, std::string_view(name), &Filter::name);
  if (found == std::end(kFilters)) return unsupported(fmt::format("filter `{}`", name));
  const auto count = std::ranges::find(found->parameters, std::string_view()) - found->parameters.begin();
  const Bound bound = GRACE_TRY(
      bind_arguments(arguments, std::span(found->parameters).first(static_cast<std::size_t>(count))));
  return found->run(*this, input, bound);
}

}  // namespace grace::jinja
