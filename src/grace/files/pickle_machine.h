// The stack machine of pickles, for pickle_machine.cc and pickle_calls.cc alone.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grace/files/pickle.h"

namespace grace {

// Reads opcodes and builds nodes. Every opcode makes at most one node, and lists take their elements off the
// stack, so that what is built is bounded by the bytes that were read; what copies elements pays out of a
// budget of that size.
class PickleMachine {
 public:
  PickleMachine(std::span<const std::byte> bytes, std::string_view place, const PickleOptions& options)
      : bytes_(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
        place_(place),
        options_(options),
        budget_(2 * bytes.size() + 64) {}
  Result<Pickle> run();

 private:
  using Ref = std::int64_t;
  using Node = Pickle::Node;
  static constexpr std::size_t kMaxMarks = 256;  // nesting that is open at a time

  // The message's place is the byte where the opcode began.
  template <typename... Args>
  Error at_fault(fmt::format_string<Args...> format, Args&&... args) const {
    return invalid_input(fmt::format("{}: pickle byte {}: {}", place_, opcode_at_,
                                     fmt::format(format, std::forward<Args>(args)...)));
  }
  Error cut_short() const { return at_fault("cut short"); }

  // Reading.
  Result<std::string_view> take(std::uint64_t count);
  Result<std::string_view> take_line();
  Result<std::uint64_t> take_unsigned(std::size_t width);  // little-endian, at most 8 bytes

  // Building.
  Ref add(Node node);
  Ref add_integer(std::int64_t value);
  Ref add_text(std::string_view text);
  Ref add_owned_text(std::string text);
  Node* node_of(Ref ref) {
    return (ref & 1) != 0 ? nullptr : &pickle_.nodes_[static_cast<std::size_t>(ref >> 1)];
  }
  const Node* list_of(Ref ref) {
    const Node* node = node_of(ref);
    return node != nullptr && node->kind == PickleKind::kList ? node : nullptr;
  }
  PickleValue value_of(Ref ref) const { return {&pickle_, ref}; }
  void push(Ref ref) { stack_.push_back(ref); }
  // Errors: a stack that is empty down to the last mark.
  Result<Ref> pop();
  // What lies above the last mark, which goes.
  Result<std::vector<Ref>> pop_to_mark();

  // Opcodes by kind; each says whether the opcode was its own.
  Result<bool> step_number(unsigned char opcode);
  Result<bool> step_text(unsigned char opcode);
  Result<bool> step_container(unsigned char opcode);
  Result<bool> step_fill(unsigned char opcode);
  Result<bool> step_memo(unsigned char opcode);
  Result<bool> step_call(unsigned char opcode);
  Status step_line_number(unsigned char opcode);
  Status step_long(std::uint64_t count);
  Status step_tuple(std::size_t count);
  Ref new_list();
  Status append(Ref list, std::span<const Ref> items);
  Status set_items(Ref dict, std::span<const Ref> items);
  Status memoize(std::uint64_t index);
  Status recall(std::uint64_t index);

  // What the closed table allows (pickle_calls.cc).
  Result<Ref> find_name(std::string_view module, std::string_view name);
  Result<Ref> apply(Ref function, Ref arguments);
  Result<Ref> dict_of(std::span<const Ref> arguments);
  Result<Ref> list_from(std::span<const Ref> arguments);
  Result<Ref> decode_latin1(std::span<const Ref> arguments);
  Result<Ref> numpy_dtype(std::span<const Ref> arguments);
  Result<Ref> numpy_scalar(std::span<const Ref> arguments);
  Result<Ref> tensor(std::span<const Ref> arguments);
  Result<Ref> storage(Ref persistent_id);
  Status build(Ref object, Ref state);
  Status build_array(Ref object, std::span<const Ref> state);
  Status pay(std::size_t count);

  std::string_view bytes_;
  std::string_view place_;
  const PickleOptions& options_;
  std::size_t budget_;
  std::size_t at_ = 0, opcode_at_ = 0;
  Pickle pickle_;
  std::vector<Ref> stack_;
  std::vector<std::size_t> marks_;  // sizes of the stack
  std::vector<Ref> memo_;
};

}  // namespace grace
