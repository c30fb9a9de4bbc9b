// The values of a pickle; the machine that makes them is pickle_machine.cc.
#include "grace/files/pickle.h"

#include <fmt/format.h>

#include <bit>

#include "grace/base/check.h"
#include "grace/files/json_file.h"

namespace grace {

const Pickle::Node* Pickle::node(std::int64_t ref) const {
  return (ref & 1) != 0 ? nullptr : &nodes_[static_cast<std::size_t>(ref >> 1)];
}

PickleKind PickleValue::kind() const {
  const Pickle::Node* node = pickle_->node(ref_);
  return node == nullptr ? PickleKind::kInt : node->kind;
}

std::int64_t PickleValue::integer() const {
  const Pickle::Node* node = pickle_->node(ref_);
  return node == nullptr ? ref_ >> 1 : node->number;
}

double PickleValue::number() const {
  return is(PickleKind::kFloat) ? std::bit_cast<double>(integer()) : static_cast<double>(integer());
}

std::string_view PickleValue::text() const {
  const Pickle::Node* node = pickle_->node(ref_);
  return node == nullptr ? std::string_view() : node->text;
}

Dtype PickleValue::dtype() const {
  const Pickle::Node* node = pickle_->node(ref_);
  GRACE_CHECK(node != nullptr, "a value with a dtype");
  return node->dtype;
}

std::size_t PickleValue::size() const {
  const Pickle::Node* node = pickle_->node(ref_);
  if (node == nullptr) return 0;
  if (node->kind == PickleKind::kSkipped) return static_cast<std::size_t>(node->number);
  return node->kind == PickleKind::kDict ? node->items.size() / 2 : node->items.size();
}

PickleValue PickleValue::at(std::size_t i) const { return {pickle_, pickle_->node(ref_)->items.at(i)}; }
PickleValue PickleValue::key(std::size_t i) const { return at(2 * i); }
PickleValue PickleValue::value(std::size_t i) const { return at(2 * i + 1); }

std::optional<PickleValue> PickleValue::find(std::string_view name) const {
  if (!is(PickleKind::kDict)) return std::nullopt;
  for (std::size_t i = 0; i < size(); ++i)
    if (key(i).is(PickleKind::kText) && key(i).text() == name) return value(i);
  return std::nullopt;
}

Result<PickleValue> PickleValue::field(std::string_view name, std::string_view place) const {
  if (!is(PickleKind::kDict)) return invalid_input(fmt::format("{}: {} is not a dict", place, shown()));
  std::optional<PickleValue> found;
  for (std::size_t i = 0; i < size(); ++i) {
    if (!key(i).is(PickleKind::kText) || key(i).text() != name) continue;
    if (found) return invalid_input(fmt::format("{}: key {} occurs twice", place, name));
    found = value(i);
  }
  if (!found) return invalid_input(fmt::format("{}: {} is missing", place, name));
  return *found;
}

std::string PickleValue::shown() const {
  switch (kind()) {
    case PickleKind::kNone:
      return "None";
    case PickleKind::kBool:
      return integer() != 0 ? "True" : "False";
    case PickleKind::kInt:
      return std::to_string(integer());
    case PickleKind::kFloat:
      return fmt::format("{}", number());
    case PickleKind::kText:
      return "text " + grace::shown(Json(std::string(text())));
    case PickleKind::kList:
    case PickleKind::kSkipped:
      return fmt::format("a list of {}", size());
    case PickleKind::kDict:
      return fmt::format("a dict of {}", size());
    case PickleKind::kStorage:
      return "a storage";
    case PickleKind::kTensor:
      return "a tensor";
    case PickleKind::kArray:
      return "an array";
    case PickleKind::kName:
      return "a class or function";
  }
  return "nothing";
}

}  // namespace grace
