// The tests behind `is`.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "grace/text/jinja/interpreter.h"
#include "grace/text/jinja/python_text.h"

namespace grace::jinja {
namespace {

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.is_string() || value.sequence() != nullptr || value.dict() != nullptr;
}

// What has a length and items by index; Jinja's Undefined counts.
bool is_sequence(const Value& value) {
  const Sequence* sequence = value.sequence();
  return value.is_undefined() || value.is_string() || value.dict() != nullptr ||
         (sequence != nullptr && sequence->has_index());
}

struct PlainTest {
  std::string_view name;
  bool (*holds)(const Value&);
};
constexpr PlainTest kPlainTests[] = {
    {"boolean", [](const Value& v) { return v.is<bool>(); }},
    {"callable", [](const Value& v) { return v.function() != nullptr; }},
    {"defined", [](const Value& v) { return !v.is_undefined(); }},
    {"false", [](const Value& v) { return v.is<bool>() && v.whole() == 0; }},
    {"float", [](const Value& v) { return v.is<double>(); }},
    {"integer", [](const Value& v) { return v.is<std::int64_t>(); }},
    {"iterable", is_iterable},
    {"mapping", [](const Value& v) { return v.dict() != nullptr; }},
    {"none", [](const Value& v) { return v.is_none(); }},
    {"number", [](const Value& v) { return v.is_number(); }},
    {"sequence", is_sequence},
    {"string", [](const Value& v) { return v.is_string(); }},
    {"true", [](const Value& v) { return v.is<bool>() && v.whole() == 1; }},
    {"undefined", [](const Value& v) { return v.is_undefined(); }},
};

// Names of Python's comparisons.
constexpr std::array<std::pair<std::string_view, std::string_view>, 16> kComparisons = {{
    {"==", "=="},
    {"eq", "=="},
    {"equalto", "=="},
    {"!=", "!="},
    {"ne", "!="},
    {"<", "<"},
    {"lt", "<"},
    {"lessthan", "<"},
    {"<=", "<="},
    {"le", "<="},
    {">", ">"},
    {"gt", ">"},
    {">=", ">="},
    {"ge", ">="},
    {"in", "in"},
    {"greaterthan", ">"},
}};

Result<std::int64_t> whole_operand(const std::string& name, const Value& value) {
  if (value.is_undefined()) return undefined_error(value);
  if (!value.is_whole()) return invalid_input(fmt::format("test `{}` of a {}", name, type_name(value)));
  return value.whole();
}

}  // namespace

Result<bool> Interpreter::test(const std::string& name, const Value& value, const Arguments& arguments) {
  GRACE_TRY(spend(1));
  const PlainTest* plain = std::ranges::find(kPlainTests, std::string_view(name), &PlainTest::name);
  const bool takes_none =
      plain != std::end(kPlainTests) || name == "odd" || name == "even" || name == "lower" || name == "upper";
  const std::size_t expected = takes_none ? 0 : 1;
  const auto comparison = std::ranges::find(kComparisons, std::string_view(name),
                                            &std::pair<std::string_view, std::string_view>::first);
  if (!takes_none && comparison == kComparisons.end() && name != "divisibleby" && name != "sameas")
    return unsupported(fmt::format("test `{}`", name));
  if (!arguments.named.empty()) return unsupported(fmt::format("a named argument of test `{}`", name));
  if (arguments.positional.size() != expected)
    return invalid_input(
        fmt::format("test `{}` takes {} arguments, not {}", name, expected, arguments.positional.size()));
  if (plain != std::end(kPlainTests)) return plain->holds(value);
  if (comparison != kComparisons.end())
    return compare(std::string(comparison->second), value, arguments.positional[0]);
  if (name == "sameas") {
    const Value& other = arguments.positional[0];
    const bool is_plain = value.is_none() || value.is<bool>();
    if (!is_plain) return unsupported("test `sameas` of another value than none, true or false");
    return value.held().index() == other.held().index() && equal(value, other);
  }
  if (name == "lower" || name == "upper") {
    const std::string text = GRACE_TRY(text_of(value));
    const std::string low = lower(text);
    const std::string high = upper(text);
    return low != high && text == (name == "lower" ? low : high);
  }
  const std::int64_t number = GRACE_TRY(whole_operand(name, value));
  if (name == "odd") return number % 2 != 0;
  if (name == "even") return number % 2 == 0;
  const std::int64_t divisor = GRACE_TRY(whole_operand(name, arguments.positional[0]));
  if (divisor == 0) return invalid_input("a division by zero");
  return divisor == -1 || number % divisor == 0;
}

}  // namespace grace::jinja
