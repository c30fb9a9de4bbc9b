// Runs a parsed template.
#pragma once

#include <ctime>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/result.h"
#include "grace/text/jinja/ast.h"
#include "grace/text/jinja/value.h"

namespace grace::jinja {

// Names and their values; what a name stands for is sought from the inside out.
class Scope {
 public:
  explicit Scope(Scope* outer = nullptr) : outer_(outer) {}
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  void set(const std::string& name, Value value) { values_.insert_or_assign(name, std::move(value)); }
  const Value* find(const std::string& name) const;  // null: nowhere

 private:
  Scope* outer_;
  std::map<std::string, Value> values_;
};

// What a call, filter or test is given.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  bool empty() const { return positional.empty() && named.empty(); }
};

// Sorts arguments to parameters: positional ones from the first on, named ones to theirs. Errors: one too
// many, twice, or of an unknown name.
Result<std::vector<std::optional<Value>>> bind_arguments(const Arguments& arguments,
                                                         std::span<const std::string_view> parameters);

// One run of one template. Errors are bare: line() tells where.
class Interpreter {
 public:
  Interpreter(const std::map<std::string, Value>& variables, const std::tm& now);

  Result<std::string> run(const Block& block);
  int line() const { return line_; }

  // Each step, and each byte or item made, costs one. Errors: unsupported when a run costs more than it may.
  Status spend(std::size_t count);
  // A new value that costs what it holds.
  Result<Value> made(std::string text, bool markup = false);
  Result<Value> made(Sequence::Kind kind, std::vector<Value> items);
  Result<Value> made(Dict dict);
  // to_text, which costs what it writes.
  Result<std::string> text_of(const Value& value);

  // filters.cc, tests.cc, methods.cc, functions.cc
  Result<Value> filter(const std::string& name, const Value& input, const Arguments& arguments);
  Result<bool> test(const std::string& name, const Value& value, const Arguments& arguments);
  Result<Value> method(const Value& self, const std::string& name, const Arguments& arguments);
  Result<Value> global_function(const std::string& name, const Arguments& arguments);

  // operators.cc. Python's operators.
  Result<Value> binary(const std::string& op, const Value& a, const Value& b);
  Result<bool> contains(const Value& container, const Value& item);
  Result<bool> compare(const std::string& op, const Value& a, const Value& b);
  Result<Value> concat(std::span<const Value> parts);
  // `value.name` and `value[key]`: an attribute first, or an item first; undefined where there is neither.
  Result<Value> attribute(const Value& value, const std::string& name);
  Result<Value> item(const Value& value, const Value& key);
  Result<Value> slice(const Value& value, const std::optional<Value>& begin, const std::optional<Value>& end,
                      const std::optional<Value>& step);
  // Its items, from first to last; of an iterator, once. Errors: for what cannot be iterated.
  Result<std::vector<Value>> items_of(const Value& value);

 private:
  enum class Flow { kNext, kBreak, kContinue };
  Result<Flow> run_block(const Block& block, Scope& scope, std::string& out);
  Result<Flow> run_statement(const Statement& statement, Scope& scope, std::string& out);
  Result<Flow> run_for(const Statement& statement, Scope& scope, std::string& out);
  Result<std::string> text_of_block(const Block& block, Scope& scope);
  Result<std::vector<Value>> items_of_loop(const Statement& statement, Scope& scope);
  Status run_output(const Statement& statement, Scope& scope, std::string& out);
  Status run_set_block(const Statement& statement, Scope& scope);
  Status run_with(const Statement& statement, Scope& scope, std::string& out);
  Status run_call(const Statement& statement, Scope& scope, std::string& out);
  Status append(std::string& out, std::string_view text);
  Status assign(const Expression& target, Value value, Scope& scope);
  Status define_macro(const Statement& statement, Scope& scope);

  Result<Value> evaluate(const Expression& expression, Scope& scope);
  Result<Value> evaluate_inner(const Expression& expression, Scope& scope);
  Result<std::vector<Value>> evaluate_all(std::span<const ExpressionPtr> parts, Scope& scope);
  Result<Arguments> evaluate_arguments(const Expression& call, Scope& scope);
  Result<Value> evaluate_name(const std::string& name, Scope& scope);
  Result<Value> evaluate_dict(const Expression& expression, Scope& scope);
  Result<Value> evaluate_compare(const Expression& expression, Scope& scope);
  Result<Value> evaluate_slice(const Expression& expression, Scope& scope);
  Result<Value> evaluate_conditional(const Expression& expression, Scope& scope);
  Result<Value> evaluate_filter(const Expression& expression, const Value& input, Scope& scope);
  Result<Value> call(const Value& callee, const Arguments& arguments);
  Result<Value> call_macro(const Function& function, const Arguments& arguments);

  const std::tm now_;
  Scope globals_;
  std::size_t spent_ = 0;
  int depth_ = 0;  // of expressions and calls
  int line_ = 1;
};

// Message of what an undefined value was to be.
Error undefined_error(const Value& value);

}  // namespace grace::jinja
