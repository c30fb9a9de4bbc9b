// The values that a template computes with: Python's, as far as templates can tell.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "grace/base/result.h"
#include "grace/files/json.h"

namespace grace::jinja {

struct Statement;
class Scope;
class Value;
struct Sequence;
struct Dict;
struct Namespace;
struct Loop;

inline constexpr int kMaxNesting = 100;  // of values in values, brackets in brackets, blocks in blocks

struct Text {
  std::string bytes;    // UTF-8
  bool markup = false;  // what `safe` makes: other text is escaped when it is added to it
};
struct None {};
struct Undefined {
  std::shared_ptr<const std::string> why;  // `'name' is undefined`; may be null
};
// Something that can be called. `owner` and `scope` live as long as the template's run.
struct Function {
  std::string name;
  std::shared_ptr<const Value> self;  // a method's
  const Statement* macro = nullptr;   // or a macro
  Scope* scope = nullptr;             // where the macro was defined
};

// Immutable but for namespaces, loops, and iterators that are used up; copies share what they hold.
class Value {
 public:
  using Held =
      std::variant<Undefined, None, bool, std::int64_t, double, std::shared_ptr<const Text>,
                   std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
                   std::shared_ptr<Loop>, std::shared_ptr<const Function>>;

  Value() = default;                            // undefined
  Value(Held held) : held_(std::move(held)) {}  // NOLINT: implicit, so that `return text;` works
  static Value none() { return Held(None{}); }
  static Value of(bool value) { return Held(value); }
  static Value of(std::int64_t value) { return Held(value); }
  static Value of(double value) { return Held(value); }
  static Value of(std::string bytes, bool markup = false);
  static Value of(const char*) = delete;  // would be a bool
  static Value undefined(std::string why);
  // Objects keep their order; a number that no 64 bits hold becomes a float, as Json has it.
  static Value from_json(const Json& json);

  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(held_);
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  bool is_string() const { return is<std::shared_ptr<const Text>>(); }
  bool is_number() const { return is<bool>() || is<std::int64_t>() || is<double>(); }
  bool is_whole() const { return is<bool>() || is<std::int64_t>(); }

  // REQUIRES: is_string().
  const std::string& text() const { return std::get<std::shared_ptr<const Text>>(held_)->bytes; }
  bool is_markup() const { return is_string() && std::get<std::shared_ptr<const Text>>(held_)->markup; }
  // REQUIRES: is_whole(), is_number().
  std::int64_t whole() const;
  double number() const;
  // null unless it is one.
  const Sequence* sequence() const;
  const Dict* dict() const;
  Namespace* name_space() const;
  Loop* loop() const;
  const Function* function() const;

  const Held& held() const { return held_; }

 private:
  Held held_;
};

struct Sequence {
  enum class Kind { kList, kTuple, kView, kIterator };  // kView: of a dict, or a range
  Kind kind = Kind::kList;
  std::vector<Value> items;
  int nesting = 1;            // values in values
  std::size_t weight = 1;     // of all of it, written out
  mutable bool used = false;  // kIterator: nothing more comes

  void add(Value item);  // and counts it in
  bool has_length() const { return kind != Kind::kIterator; }
  bool has_index() const { return kind == Kind::kList || kind == Kind::kTuple; }
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int nesting = 1;
  std::size_t weight = 1;

  // Takes a key that is not there yet, and counts it in.
  void add(Value key, Value value);
  // The same where it may be there: then the key keeps its place.
  void set(Value key, Value value);
  const Value* find(const Value& key) const;  // null: no such key
  const Value* find(std::string_view key) const;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
};

struct Loop {
  std::vector<Value> items;
  std::size_t index = 0;
  int depth = 0;
};

// Of the deepest value in it; 0 for what holds none.
int nesting_of(const Value& value);
// About as many bytes as the value written out has; what is held many times counts many times. At most
// kMostWeight, which no value in use reaches.
inline constexpr std::size_t kMostWeight = std::size_t{1} << 27;
std::size_t weight_of(const Value& value);
// Whether it may stand in a list, a dict or a namespace: what lives no longer than its scope may not.
bool may_be_stored(const Value& value);

bool is_true(const Value& value);
// Python's ==.
bool equal(const Value& a, const Value& b);
// Python's <. Errors: for types that have no order.
Result<bool> less(const Value& a, const Value& b);
// Python's str() and repr(). Errors: for functions and the like, whose text is not fixed.
Result<std::string> to_text(const Value& value);
Result<std::string> to_repr(const Value& value);
// As messages name it: `str`, `dict`, …
std::string_view type_name(const Value& value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool has_indent = false;
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
// Python's json.dumps. Errors: for what is not JSON.
Result<std::string> to_json(const Value& value, const JsonStyle& style);

}  // namespace grace::jinja
