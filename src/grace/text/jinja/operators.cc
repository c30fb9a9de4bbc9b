// Python's operators, attributes and items.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "grace/text/jinja/interpreter.h"
#include "grace/text/jinja/python_text.h"

namespace grace::jinja {
namespace {

Error no_operator(std::string_view op, const Value& a, const Value& b) {
  if (a.is_undefined()) return undefined_error(a);
  if (b.is_undefined()) return undefined_error(b);
  return invalid_input(fmt::format("`{}` between {} and {}", op, type_name(a), type_name(b)));
}

Error over_64_bits() { return unsupported("an integer of over 64 bits"); }

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a % b < 0) != (b < 0) ? quotient - 1 : quotient;
}

Result<Value> whole_power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return invalid_input("0 to a negative power");
    return Value::of(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  std::int64_t power = 1;
  if (base == 0 || base == 1 || base == -1)
    return Value::of(exponent == 0 ? 1 : exponent % 2 == 0 ? base * base : base);
  for (; exponent > 0; --exponent)
    if (__builtin_mul_overflow(power, base, &power)) return over_64_bits();
  return Value::of(power);
}

Result<Value> whole_arithmetic(const std::string& op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (op == "+")
    return __builtin_add_overflow(a, b, &result) ? over_64_bits() : Result<Value>(Value::of(result));
  if (op == "-")
    return __builtin_sub_overflow(a, b, &result) ? over_64_bits() : Result<Value>(Value::of(result));
  if (op == "*")
    return __builtin_mul_overflow(a, b, &result) ? over_64_bits() : Result<Value>(Value::of(result));
  if (op == "**") return whole_power(a, b);
  if (b == 0) return invalid_input("a division by zero");
  if (op == "/") return Value::of(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) {
    if (op == "%") return Value::of(std::int64_t{0});
    return __builtin_sub_overflow(std::int64_t{0}, a, &result) ? over_64_bits()
                                                               : Result<Value>(Value::of(result));
  }
  if (op == "//") return Value::of(floor_divide(a, b));
  return Value::of(a - floor_divide(a, b) * b);
}

Result<Value> real_arithmetic(const std::string& op, double a, double b) {
  if (op == "+") return Value::of(a + b);
  if (op == "-") return Value::of(a - b);
  if (op == "*") return Value::of(a * b);
  if (op == "**") return Value::of(std::pow(a, b));
  if (b == 0) return invalid_input("a division by zero");
  if (op == "/") return Value::of(a / b);
  const double remainder = std::fmod(a, b);
  const bool shifts = remainder != 0 && (remainder < 0) != (b < 0);
  if (op == "%") return Value::of(shifts ? remainder + b : remainder);
  return Value::of(std::floor((a - remainder) / b) - (shifts ? 1 : 0));
}

std::int64_t clamped_index(std::int64_t index, std::int64_t size, std::int64_t lowest, std::int64_t highest) {
  if (index < 0) index = index < -size ? lowest : index + size;
  return std::clamp(index, lowest, highest);
}

// Positions of a slice: [first, …) by `step`, `count` of them.
struct Steps {
  std::int64_t first = 0, step = 1, count = 0;
};

Result<Steps> steps_of(std::int64_t size, const std::optional<Value>& begin, const std::optional<Value>& end,
                       const std::optional<Value>& step) {
  for (const std::optional<Value>* bound : {&begin, &end, &step})
    if (bound->has_value() && !(*bound)->is_whole()) return invalid_input("a slice's bounds are no integers");
  Steps steps;
  if (step.has_value()) steps.step = step->whole();
  if (steps.step == 0) return invalid_input("a slice by 0");
  const bool back = steps.step < 0;
  const std::int64_t lowest = back ? -1 : 0;
  const std::int64_t highest = back ? size - 1 : size;
  steps.first = begin.has_value() ? clamped_index(begin->whole(), size, lowest, highest)
                : back            ? highest
                                  : lowest;
  const std::int64_t last = end.has_value() ? clamped_index(end->whole(), size, lowest, highest)
                            : back          ? lowest
                                            : highest;
  const std::int64_t distance = back ? steps.first - last : last - steps.first;
  const std::int64_t width = back ? -std::max(steps.step, -INT64_MAX) : steps.step;
  if (distance > 0) steps.count = (distance - 1) / width + 1;
  if (steps.count <= 1) steps.step = 0;  // however wide
  return steps;
}

Result<Value> loop_attribute(const Loop& loop, const std::string& name) {
  const auto index = static_cast<std::int64_t>(loop.index);
  const auto size = static_cast<std::int64_t>(loop.items.size());
  if (name == "index") return Value::of(index + 1);
  if (name == "index0") return Value::of(index);
  if (name == "revindex") return Value::of(size - index);
  if (name == "revindex0") return Value::of(size - index - 1);
  if (name == "first") return Value::of(index == 0);
  if (name == "last") return Value::of(index + 1 == size);
  if (name == "length") return Value::of(size);
  if (name == "previtem")
    return index > 0 ? loop.items[loop.index - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem")
    return index + 1 < size ? loop.items[loop.index + 1] : Value::undefined("there is no next item");
  return unsupported(fmt::format("`loop.{}`", name));
}

Value bound_method(const Value& self, const std::string& name) {
  return Value::Held(std::make_shared<const Function>(
      Function{name, std::make_shared<const Value>(self), nullptr, nullptr}));
}

// Whether Python's type has such a method or attribute, known to us or not.
bool has_method(const Value& value, std::string_view name) {
  static constexpr std::string_view kOfText =
      " capitalize casefold center count encode endswith expandtabs find format format_map index isalnum "
      "isalpha "
      "isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join "
      "ljust lower "
      "lstrip maketrans partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit "
      "rstrip "
      "split splitlines startswith strip swapcase title translate upper zfill ";
  static constexpr std::string_view kOfList =
      " append clear copy count extend index insert pop remove reverse sort ";
  static constexpr std::string_view kOfTuple = " count index ";
  static constexpr std::string_view kOfDict =
      " clear copy fromkeys get items keys pop popitem setdefault update values ";
  std::string_view names;
  if (value.is_string()) names = kOfText;
  if (const Sequence* sequence = value.sequence())
    names = sequence->kind == Sequence::Kind::kList ? kOfList
            : sequence->has_index()                 ? kOfTuple
                                                    : std::string_view();
  if (value.dict() != nullptr) names = kOfDict;
  return names.find(fmt::format(" {} ", name)) != std::string_view::npos;
}

// The item alone; null where there is none.
Result<std::optional<Value>> item_only(const Value& value, const Value& key) {
  if (const Dict* dict = value.dict()) {
    const Value* found = dict->find(key);
    return found != nullptr ? std::optional<Value>(*found) : std::nullopt;
  }
  const Sequence* sequence = value.sequence();
  const bool has_index = value.is_string() || (sequence != nullptr && sequence->has_index());
  if (!has_index || !key.is_whole()) return std::optional<Value>();
  if (sequence != nullptr) {
    const auto size = static_cast<std::int64_t>(sequence->items.size());
    const std::int64_t at = key.whole() < 0 ? key.whole() + size : key.whole();
    if (at < 0 || at >= size) return std::optional<Value>();
    return std::optional<Value>(sequence->items[static_cast<std::size_t>(at)]);
  }
  const std::u32string points = code_points(value.text());
  const auto size = static_cast<std::int64_t>(points.size());
  const std::int64_t at = key.whole() < 0 ? key.whole() + size : key.whole();
  if (at < 0 || at >= size) return std::optional<Value>();
  return std::optional<Value>(Value::of(utf8(std::u32string(1, points[static_cast<std::size_t>(at)]))));
}

}  // namespace

Result<Value> Interpreter::binary(const std::string& op, const Value& a, const Value& b) {
  if (a.is_whole() && b.is_whole()) return whole_arithmetic(op, a.whole(), b.whole());
  if (a.is_number() && b.is_number()) return real_arithmetic(op, a.number(), b.number());
  if (op == "+" && a.is_string() && b.is_string()) {
    const bool markup = a.is_markup() || b.is_markup();
    const auto joined = [&](const Value& part) {
      return markup && !part.is_markup() ? escape_html(part.text()) : part.text();
    };
    return made(joined(a) + joined(b), markup);
  }
  const Sequence* x = a.sequence();
  const Sequence* y = b.sequence();
  if (op == "+" && x != nullptr && y != nullptr && x->kind == y->kind && x->has_index()) {
    std::vector<Value> items = x->items;
    items.insert(items.end(), y->items.begin(), y->items.end());
    return made(x->kind, std::move(items));
  }
  if (op == "*" && (a.is_whole() != b.is_whole())) {
    const Value& repeated = a.is_whole() ? b : a;
    const std::int64_t times = std::max<std::int64_t>(0, (a.is_whole() ? a : b).whole());
    const Sequence* sequence = repeated.sequence();
    const std::size_t size = repeated.is_string()  ? repeated.text().size()
                             : sequence != nullptr ? sequence->items.size()
                                                   : 0;
    if (size > 0 && static_cast<std::uint64_t>(times) > (std::size_t{1} << 28) / size)
      return spend(SIZE_MAX).error();
    if (repeated.is_string()) {
      std::string text;
      for (std::int64_t i = 0; size > 0 && i < times; ++i) text += repeated.text();
      return made(std::move(text));
    }
    if (sequence != nullptr && sequence->has_index()) {
      GRACE_TRY(spend(size * static_cast<std::size_t>(times)));
      std::vector<Value> items;
      for (std::int64_t i = 0; size > 0 && i < times; ++i)
        items.insert(items.end(), sequence->items.begin(), sequence->items.end());
      return made(sequence->kind, std::move(items));
    }
  }
  if (op == "%" && a.is_string()) return unsupported("`%` after a string");
  return no_operator(op, a, b);
}

Result<bool> Interpreter::contains(const Value& container, const Value& item) {
  if (container.is_undefined()) return false;
  if (container.is_string()) {
    if (item.is_undefined()) return undefined_error(item);
    if (!item.is_string()) return no_operator("in", item, container);
    GRACE_TRY(spend(container.text().size() / 16));
    return container.text().find(item.text()) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) return dict->find(item) != nullptr;
  GRACE_TRY(spend(weight_of(container)));
  const std::vector<Value> items = GRACE_TRY(items_of(container));
  return std::ranges::any_of(items, [&](const Value& other) { return equal(item, other); });
}

Result<bool> Interpreter::compare(const std::string& op, const Value& a, const Value& b) {
  GRACE_TRY(spend(std::min(weight_of(a), weight_of(b))));
  if (op == "==") return equal(a, b);
  if (op == "!=") return !equal(a, b);
  if (op == "in") return contains(b, a);
  if (op == "not in") return !GRACE_TRY(contains(b, a));
  if (op == "<") return less(a, b);
  if (op == ">") return less(b, a);
  const bool before = GRACE_TRY(op == "<=" ? less(a, b) : less(b, a));
  return before || equal(a, b);
}

Result<Value> Interpreter::concat(std::span<const Value> parts) {
  std::string out;
  for (const Value& part : parts) {
    const std::string text = GRACE_TRY(text_of(part));
    out += text;
  }
  return Value::of(std::move(out));
}

Result<Value> Interpreter::attribute(const Value& value, const std::string& name) {
  if (value.is_undefined()) return undefined_error(value);
  if (Loop* loop = value.loop())
    return name == "cycle" ? bound_method(value, name) : loop_attribute(*loop, name);
  if (Namespace* names = value.name_space()) {
    const auto found = std::ranges::find(names->attributes, name, &std::pair<std::string, Value>::first);
    if (found != names->attributes.end()) return found->second;
  }
  if (has_method(value, name)) return bound_method(value, name);
  const std::optional<Value> found = GRACE_TRY(item_only(value, Value::of(name)));
  if (found.has_value()) return *found;
  return Value::undefined(fmt::format("'{} object' has no attribute '{}'", type_name(value), name));
}

Result<Value> Interpreter::item(const Value& value, const Value& key) {
  if (value.is_undefined()) return undefined_error(value);
  const std::optional<Value> found = GRACE_TRY(item_only(value, key));
  if (found.has_value()) return *found;
  if (key.is_string()) return attribute(value, key.text());
  if (!key.is_number() && !key.is_none())
    return Value::undefined(fmt::format("'{} object' has no such element", type_name(value)));
  return Value::undefined(
      fmt::format("'{} object' has no element {}", type_name(value), GRACE_TRY(to_repr(key))));
}

Result<Value> Interpreter::slice(const Value& value, const std::optional<Value>& begin,
                                 const std::optional<Value>& end, const std::optional<Value>& step) {
  if (value.is_undefined()) return undefined_error(value);
  const Sequence* sequence = value.sequence();
  if (!value.is_string() && (sequence == nullptr || !sequence->has_index()))
    return invalid_input(fmt::format("a slice of a {}", type_name(value)));
  const std::u32string points = value.is_string() ? code_points(value.text()) : std::u32string();
  const std::size_t size = value.is_string() ? points.size() : sequence->items.size();
  GRACE_TRY(spend(value.is_string() ? size / 4 : 0));
  const Steps steps = GRACE_TRY(steps_of(static_cast<std::int64_t>(size), begin, end, step));
  const auto at = [&](std::int64_t i) { return static_cast<std::size_t>(steps.first + i * steps.step); };
  if (value.is_string()) {
    std::u32string out;
    for (std::int64_t i = 0; i < steps.count; ++i) out.push_back(points[at(i)]);
    return made(utf8(out));
  }
  std::vector<Value> out;
  for (std::int64_t i = 0; i < steps.count; ++i) out.push_back(sequence->items[at(i)]);
  return made(sequence->kind, std::move(out));
}

Result<std::vector<Value>> Interpreter::items_of(const Value& value) {
  std::vector<Value> items;
  if (value.is_undefined()) return items;
  if (const Sequence* sequence = value.sequence()) {
    GRACE_TRY(spend(sequence->items.size()));
    if (sequence->kind != Sequence::Kind::kIterator) return sequence->items;
    if (!std::exchange(sequence->used, true)) return sequence->items;
    return items;
  }
  if (const Dict* dict = value.dict()) {
    GRACE_TRY(spend(dict->items.size()));
    for (const auto& item : dict->items) items.push_back(item.first);
    return items;
  }
  if (value.is_string()) {
    GRACE_TRY(spend(value.text().size() * sizeof(Value)));
    for (const char32_t c : code_points(value.text())) items.push_back(Value::of(utf8(std::u32string(1, c))));
    return items;
  }
  return invalid_input(fmt::format("a {} cannot be iterated", type_name(value)));
}

}  // namespace grace::jinja
