#include "grace/text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "grace/files/json_file.h"
#include "grace/text/jinja/python_text.h"

namespace grace::jinja {
namespace {

bool equal_items(const Sequence& a, const Sequence& b) {
  if (a.kind != b.kind) return false;
  return std::ranges::equal(a.items, b.items, [](const Value& x, const Value& y) { return equal(x, y); });
}

bool equal_dicts(const Dict& a, const Dict& b) {
  if (a.items.size() != b.items.size()) return false;
  return std::ranges::all_of(a.items, [&](const auto& item) {
    const Value* other = b.find(item.first);
    return other != nullptr && equal(item.second, *other);
  });
}

Result<std::string> join_reprs(const std::vector<Value>& items) {
  std::string out;
  for (const Value& item : items) {
    if (!out.empty()) out += ", ";
    out += GRACE_TRY(to_repr(item));
  }
  return out;
}

}  // namespace

Value Value::of(std::string bytes, bool markup) {
  return Held(std::make_shared<const Text>(Text{std::move(bytes), markup}));
}
Value Value::undefined(std::string why) {
  return Held(Undefined{std::make_shared<const std::string>(std::move(why))});
}

Value Value::from_json(const Json& json) {
  if (json.is_null()) return none();
  if (json.is_boolean()) return of(json.get<bool>());
  if (json.is_number_unsigned() && json.get<std::uint64_t>() > INT64_MAX) return of(json.get<double>());
  if (json.is_number_integer()) return of(json.get<std::int64_t>());
  if (json.is_number()) return of(json.get<double>());
  if (json.is_string()) return of(json.get<std::string>());
  if (json.is_array()) {
    auto list = std::make_shared<Sequence>();
    for (const Json& item : json) list->add(from_json(item));
    return Held(std::shared_ptr<const Sequence>(std::move(list)));
  }
  auto dict = std::make_shared<Dict>();
  for (const auto& [key, item] : json.items()) dict->add(of(key), from_json(item));
  return Held(std::shared_ptr<const Dict>(std::move(dict)));
}

std::int64_t Value::whole() const {
  if (const bool* truth = std::get_if<bool>(&held_)) return *truth ? 1 : 0;
  return std::get<std::int64_t>(held_);
}
double Value::number() const {
  if (const double* real = std::get_if<double>(&held_)) return *real;
  return static_cast<double>(whole());
}
const Sequence* Value::sequence() const {
  const auto* held = std::get_if<std::shared_ptr<const Sequence>>(&held_);
  return held == nullptr ? nullptr : held->get();
}
const Dict* Value::dict() const {
  const auto* held = std::get_if<std::shared_ptr<const Dict>>(&held_);
  return held == nullptr ? nullptr : held->get();
}
Namespace* Value::name_space() const {
  const auto* held = std::get_if<std::shared_ptr<Namespace>>(&held_);
  return held == nullptr ? nullptr : held->get();
}
Loop* Value::loop() const {
  const auto* held = std::get_if<std::shared_ptr<Loop>>(&held_);
  return held == nullptr ? nullptr : held->get();
}
const Function* Value::function() const {
  const auto* held = std::get_if<std::shared_ptr<const Function>>(&held_);
  return held == nullptr ? nullptr : held->get();
}

const Value* Dict::find(const Value& key) const {
  const auto found = std::ranges::find_if(items, [&](const auto& item) { return equal(item.first, key); });
  return found == items.end() ? nullptr : &found->second;
}
const Value* Dict::find(std::string_view key) const {
  const auto found = std::ranges::find_if(
      items, [&](const auto& item) { return item.first.is_string() && item.first.text() == key; });
  return found == items.end() ? nullptr : &found->second;
}

int nesting_of(const Value& value) {
  if (const Sequence* sequence = value.sequence()) return sequence->nesting;
  if (const Dict* dict = value.dict()) return dict->nesting;
  return 0;
}

std::size_t weight_of(const Value& value) {
  if (value.is_string()) return std::min(kMostWeight, 1 + value.text().size());
  if (const Sequence* sequence = value.sequence()) return sequence->weight;
  if (const Dict* dict = value.dict()) return dict->weight;
  return 1;
}

void Sequence::add(Value item) {
  nesting = std::max(nesting, 1 + nesting_of(item));
  weight = std::min(kMostWeight, weight + weight_of(item));
  items.push_back(std::move(item));
}

void Dict::add(Value key, Value value) {
  nesting = std::max(nesting, 1 + nesting_of(value));
  weight = std::min(kMostWeight, weight + weight_of(key) + weight_of(value));
  items.emplace_back(std::move(key), std::move(value));
}

void Dict::set(Value key, Value value) {
  const auto known = std::ranges::find_if(items, [&](const auto& item) { return equal(item.first, key); });
  if (known == items.end()) return add(std::move(key), std::move(value));
  nesting = std::max(nesting, 1 + nesting_of(value));
  weight = std::min(kMostWeight, weight + weight_of(value));
  known->second = std::move(value);
}

bool may_be_stored(const Value& value) {
  return value.name_space() == nullptr && value.loop() == nullptr && value.function() == nullptr;
}

bool is_true(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_number()) return value.number() != 0;
  if (value.is_string()) return !value.text().empty();
  if (const Sequence* sequence = value.sequence()) return !sequence->has_length() || !sequence->items.empty();
  if (const Dict* dict = value.dict()) return !dict->items.empty();
  return true;
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_whole() && b.is_whole()) return a.whole() == b.whole();
    return a.number() == b.number();
  }
  if (a.held().index() != b.held().index()) return false;
  if (a.is_undefined() || a.is_none()) return true;
  if (a.is_string()) return a.text() == b.text();
  if (const Sequence* sequence = a.sequence())
    return sequence == b.sequence() ||
           (sequence->has_index() && b.sequence()->has_index() && equal_items(*sequence, *b.sequence()));
  if (const Dict* dict = a.dict()) return equal_dicts(*dict, *b.dict());
  if (a.name_space() != nullptr) return a.name_space() == b.name_space();
  return false;
}

Result<bool> less(const Value& a, const Value& b) {
  if (a.is_undefined() || b.is_undefined()) {
    const auto& why = std::get<Undefined>((a.is_undefined() ? a : b).held()).why;
    return invalid_input(why != nullptr ? *why : "an undefined value");
  }
  if (a.is_whole() && b.is_whole()) return a.whole() < b.whole();
  if (a.is_number() && b.is_number()) return a.number() < b.number();
  if (a.is_string() && b.is_string()) return a.text() < b.text();  // UTF-8 keeps the order of code points
  const Sequence* x = a.sequence();
  const Sequence* y = b.sequence();
  if (x != nullptr && y != nullptr && x->kind == y->kind && x->has_index()) {
    for (std::size_t i = 0; i < std::min(x->items.size(), y->items.size()); ++i)
      if (!equal(x->items[i], y->items[i])) return less(x->items[i], y->items[i]);
    return x->items.size() < y->items.size();
  }
  return invalid_input(fmt::format("{} and {} have no order", type_name(a), type_name(b)));
}

std::string_view type_name(const Value& value) {
  static constexpr std::string_view kNames[] = {"Undefined", "NoneType",    "bool",    "int",
                                                "float",     "str",         "list",    "dict",
                                                "Namespace", "LoopContext", "function"};
  if (const Sequence* sequence = value.sequence()) {
    static constexpr std::string_view kSequences[] = {"list", "tuple", "view", "generator"};
    return kSequences[static_cast<std::size_t>(sequence->kind)];
  }
  return kNames[value.held().index()];
}

Result<std::string> to_text(const Value& value) {
  if (value.is_undefined()) return std::string();
  if (value.is_string()) return value.text();
  return to_repr(value);
}

Result<std::string> to_repr(const Value& value) {
  if (value.is_undefined()) return std::string("Undefined");
  if (value.is_none()) return std::string("None");
  if (value.is<bool>()) return std::string(value.whole() != 0 ? "True" : "False");
  if (value.is_whole()) return std::to_string(value.whole());
  if (value.is_number()) return repr_of_float(value.number());
  if (value.is_string() && !value.is_markup()) return repr_of_text(value.text());
  if (const Sequence* sequence = value.sequence(); sequence != nullptr && sequence->has_index()) {
    const std::string items = GRACE_TRY(join_reprs(sequence->items));
    if (sequence->kind == Sequence::Kind::kList) return "[" + items + "]";
    return "(" + items + (sequence->items.size() == 1 ? ",)" : ")");
  }
  if (const Dict* dict = value.dict()) {
    std::string out;
    for (const auto& [key, item] : dict->items) {
      if (!out.empty()) out += ", ";
      out += GRACE_TRY(to_repr(key)) + ": " + GRACE_TRY(to_repr(item));
    }
    return "{" + out + "}";
  }
  return unsupported(fmt::format("the text of a {}", type_name(value)));
}

}  // namespace grace::jinja
