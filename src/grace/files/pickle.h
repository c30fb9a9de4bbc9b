// Python pickles, as torch.save and counters are written: a small tree of values. Nothing is ever called;
// what would have to be is refused by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/result.h"
#include "grace/files/safetensors.h"

namespace grace {

enum class PickleKind {
  kNone,
  kBool,
  kInt,
  kFloat,
  kText,     // str or bytes
  kList,     // also tuples and sets
  kDict,     // also OrderedDict, defaultdict and Counter
  kSkipped,  // a list that was not kept: it has a size only
  kStorage,  // of torch: text() is its key, dtype() its elements' type, integer() their number
  kTensor,   // of torch: at(0) its storage, at(1) the offset, at(2) the shape, at(3) the strides
  kArray,    // of numpy: at(0) its shape, text() its bytes, row-major; dtype()
  kName,     // something of the closed table that is not a value by itself
};

class Pickle;

// A value of a Pickle, valid while that lives. Cheap to copy.
class PickleValue {
 public:
  PickleKind kind() const;
  bool is(PickleKind wanted) const { return kind() == wanted; }
  std::int64_t integer() const;  // of kInt, kBool, kStorage
  double number() const;         // of kInt, kFloat
  std::string_view text() const;
  Dtype dtype() const;
  std::size_t size() const;  // elements of a list, entries of a dict
  // REQUIRES: a list (or what says at()), i < size().
  PickleValue at(std::size_t i) const;
  // REQUIRES: a dict, i < size().
  PickleValue key(std::size_t i) const;
  PickleValue value(std::size_t i) const;
  // The entry of a dict under a text; nothing where it is absent, or this is no dict.
  std::optional<PickleValue> find(std::string_view name) const;
  // The same. Errors: invalid_input at `place` where it is absent or stands twice.
  Result<PickleValue> field(std::string_view name, std::string_view place) const;
  // For messages: `a list of 3`, `7`, `text "cpu"`.
  std::string shown() const;

 private:
  friend class Pickle;
  friend class PickleMachine;
  PickleValue(const Pickle* pickle, std::int64_t ref) : pickle_(pickle), ref_(ref) {}
  const Pickle* pickle_;
  std::int64_t ref_;  // 2 * integer + 1, or 2 * node
};

struct PickleOptions {
  // Lists that stand in a dict under one of these names are counted, not kept: a recording's token ids take
  // more room than what is wanted of it.
  std::vector<std::string_view> skipped;
};

// Immutable, thread-safe. Texts point into the bytes it was parsed from.
class Pickle {
 public:
  // Protocols 0 to 5. `place` stands for the path in messages. Errors: invalid_input at a byte for what is
  // cut short or no pickle, and for a class or function outside the closed table, by name; unsupported for
  // opcodes that need one (extension codes, out-of-band buffers).
  static Result<Pickle> parse(std::span<const std::byte> bytes, std::string_view place,
                              const PickleOptions& options = {});
  PickleValue root() const { return {this, root_}; }
  Pickle(Pickle&&) = default;
  Pickle& operator=(Pickle&&) = default;

 private:
  friend class PickleValue;
  friend class PickleMachine;
  struct Node {
    PickleKind kind = PickleKind::kNone;
    Dtype dtype = Dtype::kF32;
    int name = -1;            // of kName: its place in the table
    std::int64_t number = 0;  // the integer, the bits of the float, or the size of what was skipped
    std::string_view text;
    std::vector<std::int64_t> items;  // references; a dict's keys and values in turn
  };
  Pickle() = default;
  const Node* node(std::int64_t ref) const;  // null for an integer
  std::vector<Node> nodes_;
  std::vector<std::unique_ptr<std::string>> texts_;  // those that do not stand in the bytes as they are
  std::int64_t root_ = 0;
};

}  // namespace grace
