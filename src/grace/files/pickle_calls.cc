// What the few functions of the closed table stand for.
#include <algorithm>
#include <bit>

#include "grace/base/f16.h"
#include "grace/files/json_file.h"
#include "grace/files/pickle_machine.h"
#include "grace/files/pickle_names.h"

namespace grace {
namespace {

// A scalar's bytes, little-endian. REQUIRES: as many as the dtype has.
template <typename T>
T scalar_of(std::string_view raw) {
  T value{};
  std::memcpy(&value, raw.data(), sizeof(T));
  return value;
}

std::optional<std::int64_t> integer_of(Dtype dtype, std::string_view raw) {
  switch (dtype) {
    case Dtype::kBool:
    case Dtype::kU8:
      return scalar_of<std::uint8_t>(raw);
    case Dtype::kI8:
      return scalar_of<std::int8_t>(raw);
    case Dtype::kU16:
      return scalar_of<std::uint16_t>(raw);
    case Dtype::kI16:
      return scalar_of<std::int16_t>(raw);
    case Dtype::kU32:
      return scalar_of<std::uint32_t>(raw);
    case Dtype::kI32:
      return scalar_of<std::int32_t>(raw);
    case Dtype::kU64:
    case Dtype::kI64:
      return scalar_of<std::int64_t>(raw);
    default:
      return std::nullopt;
  }
}

double float_of(Dtype dtype, std::string_view raw) {
  if (dtype == Dtype::kF64) return scalar_of<double>(raw);
  if (dtype == Dtype::kF32) return static_cast<double>(scalar_of<float>(raw));
  return static_cast<double>(f32_of_f16(scalar_of<std::uint16_t>(raw)));
}

}  // namespace

Status PickleMachine::pay(std::size_t count) {
  if (count > budget_) return at_fault("copies the same values over and over");
  budget_ -= count;
  return {};
}

Result<PickleMachine::Ref> PickleMachine::find_name(std::string_view module, std::string_view name) {
  for (std::size_t i = 0; i < kPickleNames.size(); ++i) {
    if (kPickleNames[i].module != module || kPickleNames[i].name != name) continue;
    Node node;
    node.kind = PickleKind::kName;
    node.name = static_cast<int>(i);
    node.dtype = kPickleNames[i].dtype;
    return add(std::move(node));
  }
  return at_fault("names {}, which is not in the table of what is read, and nothing is ever called",
                  shown(Json(fmt::format("{}.{}", module, name))));
}

Result<PickleMachine::Ref> PickleMachine::apply(Ref function, Ref arguments) {
  const Node* callee = node_of(function);
  const Node* list = list_of(arguments);
  if (callee == nullptr || callee->kind != PickleKind::kName || callee->name < 0)
    return at_fault("would call {}", value_of(function).shown());
  if (list == nullptr) return at_fault("would call something with {}", value_of(arguments).shown());
  const PickleName& known = kPickleNames[static_cast<std::size_t>(callee->name)];
  GRACE_TRY(pay(list->items.size() + 1));
  const std::vector<Ref> items = list->items;  // what follows may add nodes
  switch (known.call) {
    case PickleCall::kTensor:
      return tensor(items);
    case PickleCall::kDictOf:
      return dict_of(items);
    case PickleCall::kDefaultDict:
      return dict_of({});
    case PickleCall::kListOf:
      return list_from(items);
    case PickleCall::kEncode:
      return decode_latin1(items);
    case PickleCall::kNumpyScalar:
      return numpy_scalar(items);
    case PickleCall::kNumpyDtype:
      return numpy_dtype(items);
    case PickleCall::kNumpyArray: {
      Node node;
      node.kind = PickleKind::kArray;
      return add(std::move(node));
    }
    case PickleCall::kNumpyBuffer: {
      if (items.size() != 4 || value_of(items[3]).text() != "C")
        return at_fault("a numpy array without bytes, dtype and shape, or in Fortran's order");
      Node node;
      node.kind = PickleKind::kArray;
      const Ref array = add(std::move(node));
      const Ref state[] = {add_integer(1), items[2], items[1], add_integer(0), items[0]};
      GRACE_TRY(build_array(array, state));
      return array;
    }
    case PickleCall::kNothing:
    case PickleCall::kStorageType:
      break;
  }
  return at_fault("would call {}.{}", known.module, known.name);
}

Result<PickleMachine::Ref> PickleMachine::dict_of(std::span<const Ref> arguments) {
  Node node;
  node.kind = PickleKind::kDict;
  if (arguments.size() > 1) return at_fault("a dict of {} arguments", arguments.size());
  if (!arguments.empty()) {
    const Node* from = node_of(arguments[0]);
    if (from != nullptr && from->kind == PickleKind::kDict) return arguments[0];
    if (from == nullptr || from->kind != PickleKind::kList)
      return at_fault("a dict of {}", value_of(arguments[0]).shown());
    GRACE_TRY(pay(2 * from->items.size()));
    for (const Ref pair : from->items) {
      const Node* two = list_of(pair);
      if (two == nullptr || two->items.size() != 2) return at_fault("a dict of {}", value_of(pair).shown());
      node.items.insert(node.items.end(), two->items.begin(), two->items.end());
    }
  }
  return add(std::move(node));
}

Result<PickleMachine::Ref> PickleMachine::list_from(std::span<const Ref> arguments) {
  if (arguments.size() == 1 && list_of(arguments[0]) != nullptr) return arguments[0];
  if (!arguments.empty()) return at_fault("a list of {}", value_of(arguments[0]).shown());
  Node node;
  node.kind = PickleKind::kList;
  return add(std::move(node));
}

// Protocol 2 has no bytes: they are written as text, each byte the code point of its value.
Result<PickleMachine::Ref> PickleMachine::decode_latin1(std::span<const Ref> arguments) {
  if (arguments.size() != 2 || value_of(arguments[1]).text() != "latin1")
    return at_fault("would call _codecs.encode otherwise than for latin1");
  const std::string_view text = value_of(arguments[0]).text();
  GRACE_TRY(pay(text.size()));
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      bytes += text[i];
    } else if ((byte == 0xc2 || byte == 0xc3) && i + 1 < text.size()) {
      bytes += static_cast<char>((byte & 3U) << 6U | (static_cast<unsigned char>(text[++i]) & 0x3fU));
    } else {
      return at_fault("a text that is not latin1");
    }
  }
  return add_owned_text(std::move(bytes));
}

Result<PickleMachine::Ref> PickleMachine::numpy_dtype(std::span<const Ref> arguments) {
  const std::string_view name = arguments.empty() ? std::string_view() : value_of(arguments[0]).text();
  const auto known = std::ranges::find(kNumpyDtypes, name, &NumpyDtype::name);
  if (known == kNumpyDtypes.end())
    return at_fault("numpy's dtype {} is not bool, a whole number, f16, f32 or f64",
                    shown(Json(std::string(name))));
  Node node;
  node.kind = PickleKind::kName;
  node.dtype = known->dtype;
  return add(std::move(node));
}

Result<PickleMachine::Ref> PickleMachine::numpy_scalar(std::span<const Ref> arguments) {
  const Node* dtype = arguments.size() == 2 ? node_of(arguments[0]) : nullptr;
  const std::string_view raw = arguments.size() == 2 ? value_of(arguments[1]).text() : std::string_view();
  if (dtype == nullptr || dtype->kind != PickleKind::kName || dtype->name >= 0 ||
      raw.size() != bytes_of(dtype->dtype))
    return at_fault("a numpy scalar of {} bytes does not fit its dtype", raw.size());
  if (const std::optional<std::int64_t> integer = integer_of(dtype->dtype, raw)) return add_integer(*integer);
  Node node;
  node.kind = PickleKind::kFloat;
  node.number = std::bit_cast<std::int64_t>(float_of(dtype->dtype, raw));
  return add(std::move(node));
}

// storage, offset, shape, strides, and what only training needs.
Result<PickleMachine::Ref> PickleMachine::tensor(std::span<const Ref> arguments) {
  const bool fits = arguments.size() >= 4 && value_of(arguments[0]).is(PickleKind::kStorage) &&
                    value_of(arguments[1]).is(PickleKind::kInt) && list_of(arguments[2]) != nullptr &&
                    list_of(arguments[3]) != nullptr;
  if (!fits) return at_fault("a tensor without storage, offset, shape and strides");
  Node node;
  node.kind = PickleKind::kTensor;
  node.dtype = value_of(arguments[0]).dtype();
  node.items.assign(arguments.begin(), arguments.begin() + 4);
  return add(std::move(node));
}

// ("storage", type, key, location, elements). The location, such as cuda:0, is where it was: its bytes are
// here.
Result<PickleMachine::Ref> PickleMachine::storage(Ref persistent_id) {
  const Node* id = list_of(persistent_id);
  const bool fits = id != nullptr && id->items.size() >= 5 && value_of(id->items[0]).text() == "storage" &&
                    value_of(id->items[2]).is(PickleKind::kText) &&
                    value_of(id->items[4]).is(PickleKind::kInt);
  const Node* type = fits ? node_of(id->items[1]) : nullptr;
  const bool typed = type != nullptr && type->kind == PickleKind::kName && type->name >= 0 &&
                     kPickleNames[static_cast<std::size_t>(type->name)].call == PickleCall::kStorageType;
  if (!typed) return at_fault("a persistent id that is no storage of torch");
  Node node;
  node.kind = PickleKind::kStorage;
  node.dtype = type->dtype;
  node.text = value_of(id->items[2]).text();
  node.number = value_of(id->items[4]).integer();
  return add(std::move(node));
}

Status PickleMachine::build(Ref object, Ref state) {
  Node* node = node_of(object);
  if (node != nullptr && node->kind == PickleKind::kDict) return {};  // attributes of an OrderedDict
  const Node* list = list_of(state);
  if (node == nullptr || list == nullptr)
    return at_fault("would set the state of {}", value_of(object).shown());
  if (node->kind == PickleKind::kName && node->name < 0) {  // a numpy dtype: version, byte order, ...
    const std::string_view order = list->items.size() < 2 ? "?" : value_of(list->items[1]).text();
    if (order != "<" && order != "|" && order != "=")
      return at_fault("numpy data of byte order {}", shown(Json(std::string(order))));
    return {};
  }
  if (node->kind == PickleKind::kArray) return build_array(object, list->items);
  return at_fault("would set the state of {}", value_of(object).shown());
}

// version, shape, dtype, is in Fortran's order, bytes
Status PickleMachine::build_array(Ref object, std::span<const Ref> state) {
  const bool fits =
      state.size() == 5 && list_of(state[1]) != nullptr && value_of(state[4]).is(PickleKind::kText);
  const Node* dtype = fits ? node_of(state[2]) : nullptr;
  if (dtype == nullptr || dtype->kind != PickleKind::kName || dtype->name >= 0)
    return at_fault("the state of a numpy array is not shape, dtype, order and bytes");
  if (value_of(state[3]).integer() != 0) return at_fault("a numpy array in Fortran's order");
  auto bytes = static_cast<std::int64_t>(bytes_of(dtype->dtype));
  bool sized = true;
  for (const Ref extent : list_of(state[1])->items) {
    const PickleValue size = value_of(extent);
    sized = sized && size.is(PickleKind::kInt) && size.integer() >= 0 &&
            !__builtin_mul_overflow(bytes, size.integer(), &bytes);
  }
  const std::string_view raw = value_of(state[4]).text();
  if (!sized || bytes != std::ssize(raw))
    return at_fault("a numpy array of {} bytes does not fit its shape", raw.size());
  Node* node = node_of(object);
  node->items = {state[1]};
  node->text = raw;
  node->dtype = dtype->dtype;
  return {};
}

}  // namespace grace
