#include "grace/files/pickle_machine.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>

#include "grace/files/json_file.h"
#include "grace/files/pickle_text.h"

namespace grace {
namespace {

constexpr std::int64_t kLargestInline = std::numeric_limits<std::int64_t>::max() >> 1;
constexpr std::int64_t kNotRemembered = kLargestInline - 1;  // even, and no node's
constexpr int kHighestProtocol = 5;

}  // namespace

Result<Pickle> Pickle::parse(std::span<const std::byte> bytes, std::string_view place,
                             const PickleOptions& options) {
  return PickleMachine(bytes, place, options).run();
}

Result<Pickle> PickleMachine::run() {
  constexpr unsigned char kStop = '.', kProto = 0x80, kFrame = 0x95;
  while (true) {
    opcode_at_ = at_;
    const auto opcode = static_cast<unsigned char>(GRACE_TRY(take(1))[0]);
    if (opcode == kStop) break;
    if (opcode == kProto) {
      const std::uint64_t protocol = GRACE_TRY(take_unsigned(1));
      if (protocol > kHighestProtocol)
        return at_fault("protocol {} is outside [0, {}]", protocol, kHighestProtocol);
    } else if (opcode == kFrame) {
      const std::uint64_t length = GRACE_TRY(take_unsigned(8));
      if (length > bytes_.size() - at_)
        return at_fault("a frame of {} bytes, {} are left", length, bytes_.size() - at_);
    } else if (!GRACE_TRY(step_number(opcode)) && !GRACE_TRY(step_text(opcode)) &&
               !GRACE_TRY(step_container(opcode)) && !GRACE_TRY(step_fill(opcode)) &&
               !GRACE_TRY(step_memo(opcode)) && !GRACE_TRY(step_call(opcode))) {
      return at_fault("opcode 0x{:02x} is none that values need", opcode);
    }
  }
  if (stack_.size() != 1 || !marks_.empty()) return at_fault("ends with {} values, not 1", stack_.size());
  pickle_.root_ = stack_[0];
  return std::move(pickle_);
}

Result<std::string_view> PickleMachine::take(std::uint64_t count) {
  if (count > bytes_.size() - at_) return cut_short();
  const std::string_view taken = bytes_.substr(at_, static_cast<std::size_t>(count));
  at_ += static_cast<std::size_t>(count);
  return taken;
}

Result<std::uint64_t> PickleMachine::take_unsigned(std::size_t width) {
  const std::string_view raw = GRACE_TRY(take(width));
  std::uint64_t value = 0;
  std::memcpy(&value, raw.data(), width);
  return value;
}

Result<std::string_view> PickleMachine::take_line() {
  const std::size_t end = bytes_.find('\n', at_);
  if (end == std::string_view::npos) return cut_short();
  const std::string_view line = bytes_.substr(at_, end - at_);
  at_ = end + 1;
  return line;
}

PickleMachine::Ref PickleMachine::add(Node node) {
  pickle_.nodes_.push_back(std::move(node));
  return static_cast<Ref>(pickle_.nodes_.size() - 1) << 1;
}

PickleMachine::Ref PickleMachine::add_integer(std::int64_t value) {
  if (value >= -kLargestInline && value <= kLargestInline) return value * 2 + 1;
  Node node;
  node.kind = PickleKind::kInt;
  node.number = value;
  return add(std::move(node));
}

PickleMachine::Ref PickleMachine::add_text(std::string_view text) {
  Node node;
  node.kind = PickleKind::kText;
  node.text = text;
  return add(std::move(node));
}

PickleMachine::Ref PickleMachine::add_owned_text(std::string text) {
  return add_text(*pickle_.texts_.emplace_back(std::make_unique<std::string>(std::move(text))));
}

Result<PickleMachine::Ref> PickleMachine::pop() {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back()))
    return at_fault("takes a value from an empty stack");
  const Ref ref = stack_.back();
  stack_.pop_back();
  return ref;
}

Result<std::vector<PickleMachine::Ref>> PickleMachine::pop_to_mark() {
  if (marks_.empty()) return at_fault("no mark to go back to");
  const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<Ref> items(begin, stack_.end());
  stack_.erase(begin, stack_.end());
  marks_.pop_back();
  return items;
}

Status PickleMachine::step_line_number(unsigned char opcode) {
  std::string_view line = GRACE_TRY(take_line());
  const std::string_view whole = line;
  if (opcode == 'I' && (line == "00" || line == "01")) {
    Node node;
    node.kind = PickleKind::kBool;
    node.number = line == "01" ? 1 : 0;
    push(add(std::move(node)));
    return {};
  }
  if (opcode == 'L' && line.ends_with('L')) line.remove_suffix(1);
  const char* const end = line.data() + line.size();
  if (opcode == 'F') {
    double value = 0;
    const auto [stop, error] = std::from_chars(line.data(), end, value);
    if (error != std::errc() || stop != end)
      return at_fault("{} is no number", shown(Json(std::string(whole))));
    Node node;
    node.kind = PickleKind::kFloat;
    node.number = std::bit_cast<std::int64_t>(value);
    push(add(std::move(node)));
    return {};
  }
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(line.data(), end, value);
  if (error != std::errc() || stop != end)
    return at_fault("{} is no whole number of 64 bits", shown(Json(std::string(whole))));
  push(add_integer(value));
  return {};
}

// Little-endian two's complement of `count` bytes.
Status PickleMachine::step_long(std::uint64_t count) {
  const std::string_view raw = GRACE_TRY(take(count));
  if (raw.size() > sizeof(std::int64_t)) {
    const bool fits =
        raw.size() == sizeof(std::int64_t) + 1 && raw.back() == '\0' && raw[sizeof(std::int64_t) - 1] >= 0;
    if (!fits) return at_fault("a whole number of {} bytes, at most 8 are read", raw.size());
  }
  const std::string_view low = raw.substr(0, sizeof(std::int64_t));
  std::uint64_t bits = !low.empty() && low.back() < 0 ? ~std::uint64_t{0} : 0;
  for (std::size_t i = low.size(); i-- > 0;) bits = bits << 8U | static_cast<unsigned char>(low[i]);
  push(add_integer(static_cast<std::int64_t>(bits)));
  return {};
}

Result<bool> PickleMachine::step_number(unsigned char opcode) {
  Node node;
  switch (opcode) {
    case 'K':
      push(add_integer(static_cast<std::int64_t>(GRACE_TRY(take_unsigned(1)))));
      return true;
    case 'M':
      push(add_integer(static_cast<std::int64_t>(GRACE_TRY(take_unsigned(2)))));
      return true;
    case 'J':
      push(add_integer(static_cast<std::int32_t>(GRACE_TRY(take_unsigned(4)))));
      return true;
    case 'I':
    case 'L':
    case 'F':
      GRACE_TRY(step_line_number(opcode));
      return true;
    case 0x8a:
    case 0x8b: {
      const std::uint64_t count = GRACE_TRY(take_unsigned(opcode == 0x8a ? 1 : 4));
      GRACE_TRY(step_long(count));
      return true;
    }
    case 'G':
      node.kind = PickleKind::kFloat;
      node.number = static_cast<std::int64_t>(__builtin_bswap64(GRACE_TRY(take_unsigned(8))));
      break;
    case 'N':
      break;
    case 0x88:
    case 0x89:
      node.kind = PickleKind::kBool;
      node.number = opcode == 0x88 ? 1 : 0;
      break;
    default:
      return false;
  }
  push(add(std::move(node)));
  return true;
}

Result<bool> PickleMachine::step_text(unsigned char opcode) {
  std::uint64_t length = 0;
  switch (opcode) {
    case 'U':
    case 'C':
    case 0x8c:
      length = GRACE_TRY(take_unsigned(1));
      break;
    case 'T':
    case 'X':
    case 'B':
      length = GRACE_TRY(take_unsigned(4));
      break;
    case 0x8d:
    case 0x8e:
    case 0x96:
      length = GRACE_TRY(take_unsigned(8));
      break;
    case 'V': {
      const std::string_view line = GRACE_TRY(take_line());
      push(add_owned_text(decode_raw_unicode(line)));
      return true;
    }
    case 'S': {
      const std::string_view line = GRACE_TRY(take_line());
      const bool quoted = line.size() >= 2 && (line[0] == '\'' || line[0] == '"') && line.back() == line[0];
      std::optional<std::string> text = quoted ? unescape(line.substr(1, line.size() - 2)) : std::nullopt;
      if (!text) return at_fault("{} is no quoted text", shown(Json(std::string(line))));
      push(add_owned_text(std::move(*text)));
      return true;
    }
    default:
      return false;
  }
  push(add_text(GRACE_TRY(take(length))));
  return true;
}

PickleMachine::Ref PickleMachine::new_list() {
  Node node;
  node.kind = PickleKind::kList;
  if (!stack_.empty()) {
    const Node* name = node_of(stack_.back());
    const bool skip = name != nullptr && name->kind == PickleKind::kText &&
                      std::ranges::find(options_.skipped, name->text) != options_.skipped.end();
    if (skip) node.kind = PickleKind::kSkipped;
  }
  return add(std::move(node));
}

Status PickleMachine::step_tuple(std::size_t count) {
  Node node;
  node.kind = PickleKind::kList;
  node.items.resize(count);
  for (std::size_t i = count; i-- > 0;) node.items[i] = GRACE_TRY(pop());
  push(add(std::move(node)));
  return {};
}

Result<bool> PickleMachine::step_container(unsigned char opcode) {
  Node node;
  switch (opcode) {
    case '(':
      if (marks_.size() == kMaxMarks) return at_fault("nested deeper than {}", kMaxMarks);
      marks_.push_back(stack_.size());
      return true;
    case ']':
    case 0x8f:
      push(new_list());
      return true;
    case ')':
      GRACE_TRY(step_tuple(0));
      return true;
    case 0x85:
    case 0x86:
    case 0x87:
      GRACE_TRY(step_tuple(opcode - std::size_t{0x84}));
      return true;
    case '}':
      node.kind = PickleKind::kDict;
      break;
    case 't':
    case 'l':
    case 0x91:
      node.kind = PickleKind::kList;
      node.items = GRACE_TRY(pop_to_mark());
      break;
    case 'd': {
      const std::vector<Ref> items = GRACE_TRY(pop_to_mark());
      node.kind = PickleKind::kDict;
      const Ref dict = add(std::move(node));
      GRACE_TRY(set_items(dict, items));
      push(dict);
      return true;
    }
    default:
      return false;
  }
  push(add(std::move(node)));
  return true;
}

Status PickleMachine::append(Ref list, std::span<const Ref> items) {
  Node* node = node_of(list);
  if (node != nullptr && node->kind == PickleKind::kSkipped) {
    node->number += std::ssize(items);
    return {};
  }
  if (node == nullptr || node->kind != PickleKind::kList)
    return at_fault("appends to {}", value_of(list).shown());
  node->items.insert(node->items.end(), items.begin(), items.end());
  return {};
}

Status PickleMachine::set_items(Ref dict, std::span<const Ref> items) {
  Node* node = node_of(dict);
  if (node == nullptr || node->kind != PickleKind::kDict)
    return at_fault("sets items of {}", value_of(dict).shown());
  if (items.size() % 2 != 0) return at_fault("a key without a value");
  node->items.insert(node->items.end(), items.begin(), items.end());
  return {};
}

Result<bool> PickleMachine::step_fill(unsigned char opcode) {
  switch (opcode) {
    case 'a': {
      const Ref item = GRACE_TRY(pop());
      const Ref list = GRACE_TRY(pop());
      push(list);
      GRACE_TRY(append(list, std::span(&item, 1)));
      return true;
    }
    case 'e':
    case 0x90: {
      const std::vector<Ref> items = GRACE_TRY(pop_to_mark());
      const Ref list = GRACE_TRY(pop());
      push(list);
      GRACE_TRY(append(list, items));
      return true;
    }
    case 's': {
      const Ref value = GRACE_TRY(pop());
      const Ref key = GRACE_TRY(pop());
      const Ref dict = GRACE_TRY(pop());
      push(dict);
      const Ref items[] = {key, value};
      GRACE_TRY(set_items(dict, items));
      return true;
    }
    case 'u': {
      const std::vector<Ref> items = GRACE_TRY(pop_to_mark());
      const Ref dict = GRACE_TRY(pop());
      push(dict);
      GRACE_TRY(set_items(dict, items));
      return true;
    }
    case '0':
      if (!marks_.empty() && stack_.size() == marks_.back())
        marks_.pop_back();
      else
        GRACE_TRY(pop());
      return true;
    case '1':
      GRACE_TRY(pop_to_mark());
      return true;
    case '2': {
      const Ref top = GRACE_TRY(pop());
      push(top);
      push(top);
      return true;
    }
    default:
      return false;
  }
}

Status PickleMachine::memoize(std::uint64_t index) {
  if (stack_.empty()) return at_fault("remembers a value of an empty stack");
  // Picklers count; a large number would only take memory.
  if (index > opcode_at_) return at_fault("remembers value {}, only {} bytes came before", index, opcode_at_);
  if (index >= memo_.size()) memo_.resize(static_cast<std::size_t>(index) + 1, kNotRemembered);
  memo_[static_cast<std::size_t>(index)] = stack_.back();
  return {};
}

Status PickleMachine::recall(std::uint64_t index) {
  if (index >= memo_.size() || memo_[static_cast<std::size_t>(index)] == kNotRemembered)
    return at_fault("recalls value {}, which was not remembered", index);
  push(memo_[static_cast<std::size_t>(index)]);
  return {};
}

Result<bool> PickleMachine::step_memo(unsigned char opcode) {
  std::uint64_t index = memo_.size();
  switch (opcode) {
    case 'p':
    case 'g': {
      const std::string_view line = GRACE_TRY(take_line());
      const auto [stop, error] = std::from_chars(line.data(), line.data() + line.size(), index);
      if (error != std::errc() || stop != line.data() + line.size())
        return at_fault("{} is no index", shown(Json(std::string(line))));
      break;
    }
    case 'q':
    case 'h':
      index = GRACE_TRY(take_unsigned(1));
      break;
    case 'r':
    case 'j':
      index = GRACE_TRY(take_unsigned(4));
      break;
    case 0x94:
      break;
    default:
      return false;
  }
  const bool recalls = opcode == 'g' || opcode == 'h' || opcode == 'j';
  GRACE_TRY(recalls ? recall(index) : memoize(index));
  return true;
}

Result<bool> PickleMachine::step_call(unsigned char opcode) {
  switch (opcode) {
    case 'c': {
      const std::string_view module = GRACE_TRY(take_line());
      const std::string_view name = GRACE_TRY(take_line());
      push(GRACE_TRY(find_name(module, name)));
      return true;
    }
    case 0x93: {
      const Ref name = GRACE_TRY(pop());
      const Ref module = GRACE_TRY(pop());
      push(GRACE_TRY(find_name(value_of(module).text(), value_of(name).text())));
      return true;
    }
    case 'i': {
      const std::string_view module = GRACE_TRY(take_line());
      const std::string_view name = GRACE_TRY(take_line());
      return at_fault("would make an object of {}", shown(Json(fmt::format("{}.{}", module, name))));
    }
    case 'R': {
      const Ref arguments = GRACE_TRY(pop());
      const Ref function = GRACE_TRY(pop());
      push(GRACE_TRY(apply(function, arguments)));
      return true;
    }
    case 'b': {
      const Ref state = GRACE_TRY(pop());
      const Ref object = GRACE_TRY(pop());
      push(object);
      GRACE_TRY(build(object, state));
      return true;
    }
    case 'Q': {
      const Ref id = GRACE_TRY(pop());
      push(GRACE_TRY(storage(id)));
      return true;
    }
    case 0x81:
    case 0x92:
    case 'o':
      return at_fault("would make an object of a class, which is not done");
    default:
      return false;
  }
}

}  // namespace grace
