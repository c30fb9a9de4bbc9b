// Methods of Python's texts, lists and dicts, and the functions that templates are given.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "grace/text/jinja/interpreter.h"
#include "grace/text/jinja/python_text.h"

namespace grace::jinja {
namespace {

using Bound = std::vector<std::optional<Value>>;

Error wrong_type(const Value& value, std::string_view where) {
  if (value.is_undefined()) return undefined_error(value);
  return invalid_input(fmt::format("`{}` takes no {}", where, type_name(value)));
}

Result<std::optional<std::string>> optional_text(const std::optional<Value>& value, std::string_view where) {
  if (!value.has_value() || value->is_none()) return std::optional<std::string>();
  if (!value->is_string()) return wrong_type(*value, where);
  return std::optional<std::string>(value->text());
}

Result<std::string> needed_text(const std::optional<Value>& value, std::string_view where) {
  if (!value.has_value()) return invalid_input(fmt::format("`{}` needs a text", where));
  if (!value->is_string()) return wrong_type(*value, where);
  return value->text();
}

Result<std::int64_t> number_or(const std::optional<Value>& value, std::int64_t fallback,
                               std::string_view where) {
  if (!value.has_value()) return fallback;
  if (!value->is_whole()) return wrong_type(*value, where);
  return value->whole();
}

Result<Value> list_of_texts(Interpreter& in, std::vector<std::string> texts) {
  std::vector<Value> items;
  for (std::string& text : texts) items.push_back(GRACE_TRY(in.made(std::move(text))));
  return in.made(Sequence::Kind::kList, std::move(items));
}

Result<Value> stripped(Interpreter& in, const std::string& text, const Bound& bound, bool left, bool right) {
  const std::optional<std::string> chars = GRACE_TRY(optional_text(bound[0], "strip"));
  return in.made(strip(text, chars, left, right));
}
Result<Value> strip_both(Interpreter& in, const std::string& text, const Bound& b) {
  return stripped(in, text, b, true, true);
}
Result<Value> strip_left(Interpreter& in, const std::string& text, const Bound& b) {
  return stripped(in, text, b, true, false);
}
Result<Value> strip_right(Interpreter& in, const std::string& text, const Bound& b) {
  return stripped(in, text, b, false, true);
}

Result<Value> split_text(Interpreter& in, const std::string& text, const Bound& bound) {
  const std::optional<std::string> separator = GRACE_TRY(optional_text(bound[0], "split"));
  const std::int64_t most = GRACE_TRY(number_or(bound[1], -1, "split"));
  if (separator.has_value() && separator->empty()) return invalid_input("`split` at an empty text");
  GRACE_TRY(in.spend(text.size()));
  return list_of_texts(in, split(text, separator, most));
}

Result<Value> rsplit_text(Interpreter& in, const std::string& text, const Bound& bound) {
  const std::optional<std::string> separator = GRACE_TRY(optional_text(bound[0], "rsplit"));
  const std::int64_t most = GRACE_TRY(number_or(bound[1], -1, "rsplit"));
  if (!separator.has_value() && most >= 0) return unsupported("`rsplit` at white space, a number of times");
  if (!separator.has_value()) return list_of_texts(in, split(text, separator, most));
  if (separator->empty()) return invalid_input("`rsplit` at an empty text");
  GRACE_TRY(in.spend(text.size()));
  return list_of_texts(in, rsplit(text, *separator, most));
}

Result<Value> splitlines_text(Interpreter& in, const std::string& text, const Bound& bound) {
  if (bound[0].has_value() && is_true(*bound[0])) return unsupported("`splitlines` that keeps line ends");
  GRACE_TRY(in.spend(text.size()));
  return list_of_texts(in, split_lines(text));
}

template <bool AtStart>
Result<Value> begins_or_ends(Interpreter& in, const std::string& text, const Bound& bound) {
  if (!bound[0].has_value()) return invalid_input("`startswith` and `endswith` need a text");
  const Sequence* several = bound[0]->sequence();
  const bool is_tuple = several != nullptr && several->kind == Sequence::Kind::kTuple;
  if (!bound[0]->is_string() && !is_tuple) return wrong_type(*bound[0], AtStart ? "startswith" : "endswith");
  const std::vector<Value> parts = is_tuple ? several->items : std::vector<Value>{*bound[0]};
  GRACE_TRY(in.spend(parts.size()));
  for (const Value& part : parts) {
    if (!part.is_string()) return wrong_type(part, AtStart ? "startswith" : "endswith");
    if (AtStart ? text.starts_with(part.text()) : text.ends_with(part.text())) return Value::of(true);
  }
  return Value::of(false);
}

Result<Value> replace_text(Interpreter& in, const std::string& text, const Bound& bound) {
  const std::string old = GRACE_TRY(needed_text(bound[0], "replace"));
  const std::string with = GRACE_TRY(needed_text(bound[1], "replace"));
  const std::int64_t most = GRACE_TRY(number_or(bound[2], -1, "replace"));
  GRACE_TRY(in.spend((text.size() + 1) * (with.size() + 1) / (old.size() + 1)));
  return in.made(replace(text, old, with, most));
}

template <std::string (*Change)(std::string_view)>
Result<Value> changed(Interpreter& in, const std::string& text, const Bound&) {
  return in.made(Change(text));
}

Result<Value> join_texts(Interpreter& in, const std::string& text, const Bound& bound) {
  if (!bound[0].has_value()) return invalid_input("`join` needs texts");
  const std::vector<Value> parts = GRACE_TRY(in.items_of(*bound[0]));
  std::string out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].is_string()) return wrong_type(parts[i], "join");
    GRACE_TRY(in.spend(parts[i].text().size() + text.size()));
    if (i > 0) out += text;
    out += parts[i].text();
  }
  return Value::of(std::move(out));
}

template <bool FromRight, bool Fails>
Result<Value> find_text(Interpreter& in, const std::string& text, const Bound& bound) {
  const std::string sought = GRACE_TRY(needed_text(bound[0], "find"));
  GRACE_TRY(in.spend(text.size() / 16));
  const std::size_t found = FromRight ? text.rfind(sought) : text.find(sought);
  if (found == std::string::npos) {
    if (Fails) return invalid_input("`index`: no such text");
    return Value::of(std::int64_t{-1});
  }
  return Value::of(static_cast<std::int64_t>(length_in_code_points(std::string_view(text).substr(0, found))));
}

Result<Value> count_text(Interpreter& in, const std::string& text, const Bound& bound) {
  const std::string sought = GRACE_TRY(needed_text(bound[0], "count"));
  GRACE_TRY(in.spend(text.size() / 16));
  if (sought.empty()) return Value::of(static_cast<std::int64_t>(length_in_code_points(text)) + 1);
  std::int64_t count = 0;
  for (std::size_t at = 0; (at = text.find(sought, at)) != std::string::npos; at += sought.size()) ++count;
  return Value::of(count);
}

template <bool Prefix>
Result<Value> without_affix(Interpreter& in, const std::string& text, const Bound& bound) {
  const std::string affix = GRACE_TRY(needed_text(bound[0], Prefix ? "removeprefix" : "removesuffix"));
  if (Prefix ? !text.starts_with(affix) : !text.ends_with(affix)) return in.made(text);
  return in.made(text.substr(Prefix ? affix.size() : 0, text.size() - affix.size()));
}

template <bool (*Holds)(char32_t)>
Result<Value> all_are(Interpreter& in, const std::string& text, const Bound&) {
  GRACE_TRY(in.spend(text.size() / 4));
  const std::u32string points = code_points(text);
  return Value::of(!points.empty() && std::ranges::all_of(points, Holds));
}
bool is_ascii_digit(char32_t c) { return c >= U'0' && c <= U'9'; }

struct TextMethod {
  std::string_view name;
  Result<Value> (*run)(Interpreter&, const std::string&, const Bound&);
  std::array<std::string_view, 3> parameters{};
};
constexpr TextMethod kTextMethods[] = {
    {"capitalize", changed<capitalize>, {}},
    {"count", count_text, {"sub"}},
    {"endswith", begins_or_ends<false>, {"suffix"}},
    {"find", find_text<false, false>, {"sub"}},
    {"index", find_text<false, true>, {"sub"}},
    {"isdigit", all_are<is_ascii_digit>, {}},
    {"isspace", all_are<is_python_space>, {}},
    {"join", join_texts, {"iterable"}},
    {"lower", changed<lower>, {}},
    {"lstrip", strip_left, {"chars"}},
    {"removeprefix", without_affix<true>, {"prefix"}},
    {"removesuffix", without_affix<false>, {"suffix"}},
    {"replace", replace_text, {"old", "new", "count"}},
    {"rfind", find_text<true, false>, {"sub"}},
    {"rindex", find_text<true, true>, {"sub"}},
    {"rsplit", rsplit_text, {"sep", "maxsplit"}},
    {"rstrip", strip_right, {"chars"}},
    {"split", split_text, {"sep", "maxsplit"}},
    {"splitlines", splitlines_text, {"keepends"}},
    {"startswith", begins_or_ends<true>, {"prefix"}},
    {"strip", strip_both, {"chars"}},
    {"title", changed<title>, {}},
    {"upper", changed<upper>, {}},
};

Result<Value> dict_method(Interpreter& in, const Dict& dict, const std::string& name,
                          const Arguments& arguments) {
  if (name == "get") {
    static constexpr std::array<std::string_view, 2> kParameters = {"key", "default"};
    const Bound bound = GRACE_TRY(bind_arguments(arguments, kParameters));
    if (!bound[0].has_value()) return invalid_input("`get` needs a key");
    const Value* found = dict.find(*bound[0]);
    return found != nullptr ? *found : bound[1].value_or(Value::none());
  }
  if (name != "items" && name != "keys" && name != "values")
    return unsupported(fmt::format("method `{}` of a dict", name));
  if (!arguments.empty()) return invalid_input(fmt::format("`{}` takes no argument", name));
  std::vector<Value> out;
  for (const auto& [key, value] : dict.items) {
    if (name == "items") {
      out.push_back(GRACE_TRY(in.made(Sequence::Kind::kTuple, {key, value})));
    } else {
      out.push_back(name == "keys" ? key : value);
    }
  }
  return in.made(Sequence::Kind::kView, std::move(out));
}

Result<Value> list_method(Interpreter& in, const Sequence& list, const std::string& name,
                          const Arguments& arguments) {
  static constexpr std::array<std::string_view, 1> kParameters = {"value"};
  if (name != "count" && name != "index") return unsupported(fmt::format("method `{}` of a list", name));
  const Bound bound = GRACE_TRY(bind_arguments(arguments, kParameters));
  if (!bound[0].has_value()) return invalid_input(fmt::format("`{}` needs a value", name));
  GRACE_TRY(in.spend(list.weight));
  const auto is_it = [&](const Value& item) { return equal(item, *bound[0]); };
  if (name == "count") return Value::of(static_cast<std::int64_t>(std::ranges::count_if(list.items, is_it)));
  const auto found = std::ranges::find_if(list.items, is_it);
  if (found == list.items.end()) return invalid_input("`index`: no such item");
  return Value::of(static_cast<std::int64_t>(found - list.items.begin()));
}

Result<Value> range(Interpreter& in, const Arguments& arguments) {
  constexpr std::int64_t kMostItems = 100'000;  // the reference's too
  const std::size_t given = arguments.positional.size();
  if (!arguments.named.empty() || given < 1 || given > 3)
    return invalid_input("`range` takes one to three integers");
  for (const Value& value : arguments.positional)
    if (!value.is_whole()) return wrong_type(value, "range");
  const auto at = [&](std::size_t i) { return arguments.positional[i].whole(); };
  const std::int64_t begin = given == 1 ? 0 : at(0);
  const std::int64_t end = given == 1 ? at(0) : at(1);
  const std::int64_t step = given == 3 ? at(2) : 1;
  if (step == 0) return invalid_input("`range` by 0");
  std::vector<Value> items;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<std::int64_t>(items.size()) == kMostItems)
      return invalid_input(fmt::format("`range` of over {} items", kMostItems));
    items.push_back(Value::of(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return in.made(Sequence::Kind::kView, std::move(items));
}

Result<Value> make_namespace(Interpreter& in, const Arguments& arguments) {
  auto made = std::make_shared<Namespace>();
  if (!arguments.positional.empty()) return unsupported("`namespace` of a dict");
  GRACE_TRY(in.spend(arguments.named.size() * sizeof(Value)));
  for (const auto& [name, value] : arguments.named) {
    if (name.starts_with('_')) return invalid_input(fmt::format("attribute `{}` of a namespace", name));
    if (!may_be_stored(value)) return unsupported(fmt::format("a {} in a namespace", type_name(value)));
    made->attributes.emplace_back(name, value);
  }
  return Value(Value::Held(std::move(made)));
}

Result<Value> make_dict(Interpreter& in, const Arguments& arguments) {
  Dict made;
  if (!arguments.positional.empty()) return unsupported("`dict` of another value");
  GRACE_TRY(in.spend(2 * arguments.named.size() * sizeof(Value)));
  for (const auto& [name, value] : arguments.named) made.add(Value::of(name), value);
  return in.made(std::move(made));
}

Result<Value> strftime_now(Interpreter& in, const Arguments& arguments, const std::tm& now) {
  if (arguments.positional.size() != 1 || !arguments.positional[0].is_string() || !arguments.named.empty())
    return invalid_input("`strftime_now` takes one text");
  std::array<char, 512> text{};
  const std::string format =
      arguments.positional[0].text() + "\x01";  // so that an empty result is told from none
  const std::size_t size = std::strftime(text.data(), text.size(), format.c_str(), &now);
  if (size == 0) return unsupported("`strftime_now` with a long format");
  return in.made(std::string(text.data(), size - 1));
}

Error refusal(Interpreter& in, const Arguments& arguments) {
  const Value message = arguments.positional.empty() ? Value() : arguments.positional[0];
  const Result<std::string> text = in.text_of(message);
  std::string line = text.ok() ? text.value() : std::string();
  std::ranges::replace_if(
      line, [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return invalid_input(fmt::format("the template refuses: {}", line));
}

}  // namespace

Result<Value> Interpreter::method(const Value& self, const std::string& name, const Arguments& arguments) {
  GRACE_TRY(spend(self.is_string() ? 1 + self.text().size() / 8 : 1));
  if (const Dict* dict = self.dict()) return dict_method(*this, *dict, name, arguments);
  if (const Sequence* sequence = self.sequence()) return list_method(*this, *sequence, name, arguments);
  if (const Loop* loop = self.loop()) {
    if (arguments.positional.empty()) return invalid_input("`loop.cycle` needs values");
    return arguments.positional[loop->index % arguments.positional.size()];
  }
  const TextMethod* found = std::ranges::find(kTextMethods, std::string_view(name), &TextMethod::name);
  if (found == std::end(kTextMethods)) return unsupported(fmt::format("method `{}` of a text", name));
  const auto count = std::ranges::find(found->parameters, std::string_view()) - found->parameters.begin();
  const Bound bound = GRACE_TRY(
      bind_arguments(arguments, std::span(found->parameters).first(static_cast<std::size_t>(count))));
  return found->run(*this, self.text(), bound);
}

Result<Value> Interpreter::global_function(const std::string& name, const Arguments& arguments) {
  if (name == "range") return range(*this, arguments);
  if (name == "dict") return make_dict(*this, arguments);
  if (name == "namespace") return make_namespace(*this, arguments);
  if (name == "strftime_now") return strftime_now(*this, arguments, now_);
  return refusal(*this, arguments);  // raise_exception
}

}  // namespace grace::jinja
