#include "grace/text/jinja/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace grace::jinja {

namespace {

constexpr std::size_t kMostSpent = std::size_t{1} << 27;  // seconds, and a few hundred megabytes
constexpr int kMaxRunDepth = 500;                         // a stack of a few MB

constexpr std::array<std::string_view, 5> kGlobals = {"range", "dict", "namespace", "raise_exception",
                                                      "strftime_now"};

Error too_deep() { return unsupported(fmt::format("calls nested deeper than {}", kMaxRunDepth)); }

Value make_function(Function function) {
  return Value::Held(std::make_shared<const Function>(std::move(function)));
}

}  // namespace

const Value* Scope::find(const std::string& name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->outer_) {
    const auto found = scope->values_.find(name);
    if (found != scope->values_.end()) return &found->second;
  }
  return nullptr;
}

Error undefined_error(const Value& value) {
  const auto& why = std::get<Undefined>(value.held()).why;
  return invalid_input(why != nullptr ? *why : "an undefined value");
}

Result<std::vector<std::optional<Value>>> bind_arguments(const Arguments& arguments,
                                                         std::span<const std::string_view> parameters) {
  if (arguments.positional.size() > parameters.size())
    return invalid_input(
        fmt::format("{} arguments where {} are the most", arguments.positional.size(), parameters.size()));
  std::vector<std::optional<Value>> bound(parameters.size());
  std::ranges::copy(arguments.positional, bound.begin());
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::ranges::find(parameters, std::string_view(name));
    if (found == parameters.end()) return unsupported(fmt::format("an argument `{}`", name));
    std::optional<Value>& place = bound[static_cast<std::size_t>(found - parameters.begin())];
    if (place.has_value()) return invalid_input(fmt::format("two arguments `{}`", name));
    place = value;
  }
  return bound;
}

Interpreter::Interpreter(const std::map<std::string, Value>& variables, const std::tm& now) : now_(now) {
  for (const std::string_view name : kGlobals)
    globals_.set(std::string(name), make_function({std::string(name), nullptr, nullptr, nullptr}));
  for (const auto& [name, value] : variables) globals_.set(name, value);
}

Result<std::string> Interpreter::run(const Block& block) {
  Scope scope(&globals_);
  return text_of_block(block, scope);
}

Status Interpreter::spend(std::size_t count) {
  spent_ += std::min(count, kMostSpent);
  if (spent_ > kMostSpent) return unsupported(fmt::format("more work than {} steps and bytes", kMostSpent));
  return {};
}

Result<Value> Interpreter::made(std::string text, bool markup) {
  GRACE_TRY(spend(text.size()));
  return Value::of(std::move(text), markup);
}

namespace {

// What is nested too deep, or is too much when written out, would fail later and worse.
Status check_size(int nesting, std::size_t weight) {
  if (nesting > kMaxNesting) return unsupported(fmt::format("values nested deeper than {}", kMaxNesting));
  if (weight >= kMostWeight) return unsupported(fmt::format("a value of over {} bytes", kMostWeight));
  return {};
}

}  // namespace

Result<Value> Interpreter::made(Sequence::Kind kind, std::vector<Value> items) {
  GRACE_TRY(spend(items.size() * sizeof(Value)));
  auto sequence = std::make_shared<Sequence>();
  sequence->kind = kind;
  sequence->items.reserve(items.size());
  for (Value& item : items) {
    if (!may_be_stored(item)) return unsupported(fmt::format("a {} in a list", type_name(item)));
    sequence->add(std::move(item));
  }
  GRACE_TRY(check_size(sequence->nesting, sequence->weight));
  return Value(Value::Held(std::shared_ptr<const Sequence>(std::move(sequence))));
}

Result<Value> Interpreter::made(Dict dict) {
  for (const auto& [key, value] : dict.items)
    if (!may_be_stored(value)) return unsupported(fmt::format("a {} in a dict", type_name(value)));
  GRACE_TRY(check_size(dict.nesting, dict.weight));
  return Value(Value::Held(std::make_shared<const Dict>(std::move(dict))));
}

Result<std::string> Interpreter::text_of(const Value& value) {
  GRACE_TRY(spend(weight_of(value)));
  return to_text(value);
}

Status Interpreter::append(std::string& out, std::string_view text) {
  GRACE_TRY(spend(text.size()));
  out.append(text);
  return {};
}

Result<std::string> Interpreter::text_of_block(const Block& block, Scope& scope) {
  std::string out;
  GRACE_TRY(run_block(block, scope, out));
  return out;
}

Result<Interpreter::Flow> Interpreter::run_block(const Block& block, Scope& scope, std::string& out) {
  if (depth_ >= kMaxRunDepth) return too_deep();
  ++depth_;
  Result<Flow> flow = Flow::kNext;
  for (const Statement& statement : block) {
    line_ = statement.line;
    const Status paid = spend(1);
    flow = paid.ok() ? run_statement(statement, scope, out) : Result<Flow>(paid.error());
    if (!flow.ok() || flow.value() != Flow::kNext) break;
  }
  --depth_;
  return flow;
}

Result<Interpreter::Flow> Interpreter::run_statement(const Statement& statement, Scope& scope,
                                                     std::string& out) {
  Status done;
  switch (statement.kind) {
    case Statement::Kind::kData:
      done = append(out, statement.text);
      break;
    case Statement::Kind::kOutput:
      done = run_output(statement, scope, out);
      break;
    case Statement::Kind::kFor:
      return run_for(statement, scope, out);
    case Statement::Kind::kIf: {
      const bool holds = is_true(GRACE_TRY(evaluate(*statement.condition, scope)));
      return run_block(holds ? statement.body : statement.otherwise, scope, out);
    }
    case Statement::Kind::kSet: {
      Value value = GRACE_TRY(evaluate(*statement.value, scope));
      done = assign(*statement.target, std::move(value), scope);
      break;
    }
    case Statement::Kind::kSetBlock:
      done = run_set_block(statement, scope);
      break;
    case Statement::Kind::kMacro:
      done = define_macro(statement, scope);
      break;
    case Statement::Kind::kScope: {
      Scope inner(&scope);
      done = append(out, GRACE_TRY(text_of_block(statement.body, inner)));
      break;
    }
    case Statement::Kind::kWith:
      done = run_with(statement, scope, out);
      break;
    case Statement::Kind::kFilter: {
      Scope inner(&scope);
      std::string unfiltered = GRACE_TRY(text_of_block(statement.body, inner));
      const Value text = Value::of(std::move(unfiltered));
      const Value filtered = GRACE_TRY(evaluate_filter(*statement.value, text, scope));
      done = append(out, GRACE_TRY(text_of(filtered)));
      break;
    }
    case Statement::Kind::kCall:
      done = run_call(statement, scope, out);
      break;
    case Statement::Kind::kBreak:
      return Flow::kBreak;
    case Statement::Kind::kContinue:
      return Flow::kContinue;
  }
  GRACE_TRY(std::move(done));
  return Flow::kNext;
}

Status Interpreter::run_output(const Statement& statement, Scope& scope, std::string& out) {
  const Value value = GRACE_TRY(evaluate(*statement.value, scope));
  const std::string text = GRACE_TRY(text_of(value));
  return append(out, text);
}

Result<std::vector<Value>> Interpreter::items_of_loop(const Statement& statement, Scope& scope) {
  const Value value = GRACE_TRY(evaluate(*statement.value, scope));
  std::vector<Value> items = GRACE_TRY(items_of(value));
  if (statement.condition == nullptr) return items;
  std::vector<Value> kept;
  for (Value& item : items) {
    Scope inner(&scope);
    GRACE_TRY(assign(*statement.target, item, inner));
    const Value holds = GRACE_TRY(evaluate(*statement.condition, inner));
    if (is_true(holds)) kept.push_back(std::move(item));
  }
  return kept;
}

Result<Interpreter::Flow> Interpreter::run_for(const Statement& statement, Scope& scope, std::string& out) {
  std::vector<Value> items = GRACE_TRY(items_of_loop(statement, scope));
  if (items.empty()) {
    Scope inner(&scope);
    return run_block(statement.otherwise, inner, out);
  }
  const auto loop = std::make_shared<Loop>();
  loop->items = std::move(items);
  for (; loop->index < loop->items.size(); ++loop->index) {
    Scope inner(&scope);
    inner.set("loop", Value::Held(loop));
    GRACE_TRY(assign(*statement.target, loop->items[loop->index], inner));
    const Flow flow = GRACE_TRY(run_block(statement.body, inner, out));
    if (flow == Flow::kBreak) break;
  }
  return Flow::kNext;
}

Status Interpreter::run_set_block(const Statement& statement, Scope& scope) {
  Value value;
  {
    Scope inner(&scope);
    std::string text = GRACE_TRY(text_of_block(statement.body, inner));
    value = Value::of(std::move(text));
  }
  if (statement.value != nullptr) value = GRACE_TRY(evaluate_filter(*statement.value, value, scope));
  return assign(*statement.target, std::move(value), scope);
}

// Values are those of the names outside.
Status Interpreter::run_with(const Statement& statement, Scope& scope, std::string& out) {
  Scope inner(&scope);
  for (const auto& [name, expression] : statement.parameters) {
    Value value = GRACE_TRY(evaluate(*expression, scope));
    inner.set(name, std::move(value));
  }
  const std::string text = GRACE_TRY(text_of_block(statement.body, inner));
  return append(out, text);
}

Status Interpreter::run_call(const Statement& statement, Scope& scope, std::string& out) {
  const Value callee = GRACE_TRY(evaluate(*statement.value->parts[0], scope));
  Arguments arguments = GRACE_TRY(evaluate_arguments(*statement.value, scope));
  arguments.named.emplace_back("caller", make_function({"caller", nullptr, &statement, &scope}));
  const Value value = GRACE_TRY(call(callee, arguments));
  const std::string text = GRACE_TRY(text_of(value));
  return append(out, text);
}

Status Interpreter::assign(const Expression& target, Value value, Scope& scope) {
  if (target.kind == Expression::Kind::kName) return scope.set(target.text, std::move(value)), Status();
  if (target.kind == Expression::Kind::kAttribute) {
    const Value* found = scope.find(target.parts[0]->text);
    Namespace* names = found != nullptr ? found->name_space() : nullptr;
    if (names == nullptr) return invalid_input(fmt::format("`{}` is no namespace", target.parts[0]->text));
    if (target.text.starts_with('_'))
      return invalid_input(fmt::format("attribute `{}` of a namespace", target.text));
    if (!may_be_stored(value)) return unsupported(fmt::format("a {} in a namespace", type_name(value)));
    const auto known =
        std::ranges::find(names->attributes, target.text, &std::pair<std::string, Value>::first);
    if (known == names->attributes.end()) {
      names->attributes.emplace_back(target.text, std::move(value));
    } else {
      known->second = std::move(value);
    }
    return {};
  }
  const std::vector<Value> items = GRACE_TRY(items_of(value));
  if (items.size() != target.parts.size())
    return invalid_input(fmt::format("{} values for {} names", items.size(), target.parts.size()));
  for (std::size_t i = 0; i < items.size(); ++i) GRACE_TRY(assign(*target.parts[i], items[i], scope));
  return {};
}

Status Interpreter::define_macro(const Statement& statement, Scope& scope) {
  scope.set(statement.text, make_function({statement.text, nullptr, &statement, &scope}));
  return {};
}

Result<Value> Interpreter::evaluate(const Expression& expression, Scope& scope) {
  GRACE_TRY(spend(1));
  line_ = expression.line;
  if (depth_ >= kMaxRunDepth) return too_deep();
  ++depth_;
  Result<Value> value = evaluate_inner(expression, scope);
  --depth_;
  return value;
}

Result<Value> Interpreter::evaluate_name(const std::string& name, Scope& scope) {
  const Value* found = scope.find(name);
  if (found != nullptr) return *found;
  return Value::undefined(fmt::format("'{}' is undefined", name));
}

Result<std::vector<Value>> Interpreter::evaluate_all(std::span<const ExpressionPtr> parts, Scope& scope) {
  std::vector<Value> values;
  for (const ExpressionPtr& part : parts) values.push_back(GRACE_TRY(evaluate(*part, scope)));
  return values;
}

Result<Arguments> Interpreter::evaluate_arguments(const Expression& call, Scope& scope) {
  Arguments arguments;
  arguments.positional = GRACE_TRY(evaluate_all(std::span(call.parts).subspan(1), scope));
  for (const auto& [name, part] : call.named) {
    Value value = GRACE_TRY(evaluate(*part, scope));
    arguments.named.emplace_back(name, std::move(value));
  }
  return arguments;
}

Result<Value> Interpreter::evaluate_inner(const Expression& expression, Scope& scope) {
  const auto part = [&](std::size_t i) { return evaluate(*expression.parts[i], scope); };
  using Kind = Expression::Kind;
  switch (expression.kind) {
    case Kind::kConstant:
      return expression.constant;
    case Kind::kName:
      return evaluate_name(expression.text, scope);
    case Kind::kList:
      return made(Sequence::Kind::kList, GRACE_TRY(evaluate_all(expression.parts, scope)));
    case Kind::kTuple:
      return made(Sequence::Kind::kTuple, GRACE_TRY(evaluate_all(expression.parts, scope)));
    case Kind::kDict:
      return evaluate_dict(expression, scope);
    case Kind::kAttribute:
      return attribute(GRACE_TRY(part(0)), expression.text);
    case Kind::kItem: {
      const Value value = GRACE_TRY(part(0));
      return item(value, GRACE_TRY(part(1)));
    }
    case Kind::kSlice:
      return evaluate_slice(expression, scope);
    case Kind::kCall: {
      const Value callee = GRACE_TRY(part(0));
      return call(callee, GRACE_TRY(evaluate_arguments(expression, scope)));
    }
    case Kind::kFilter:
      return evaluate_filter(expression, Value(), scope);
    case Kind::kTest: {
      const Value value = GRACE_TRY(part(0));
      const Arguments arguments = GRACE_TRY(evaluate_arguments(expression, scope));
      return Value::of(GRACE_TRY(test(expression.text, value, arguments)));
    }
    case Kind::kNegative:
      return binary("-", Value::of(std::int64_t{0}), GRACE_TRY(part(0)));
    case Kind::kPositive:
      return binary("+", Value::of(std::int64_t{0}), GRACE_TRY(part(0)));
    case Kind::kNot:
      return Value::of(!is_true(GRACE_TRY(part(0))));
    case Kind::kAnd:
    case Kind::kOr: {
      Value first = GRACE_TRY(part(0));
      return is_true(first) == (expression.kind == Kind::kOr) ? Result<Value>(std::move(first)) : part(1);
    }
    case Kind::kBinary: {
      const Value first = GRACE_TRY(part(0));
      return binary(expression.text, first, GRACE_TRY(part(1)));
    }
    case Kind::kConcat:
      return concat(GRACE_TRY(evaluate_all(expression.parts, scope)));
    case Kind::kCompare:
      return evaluate_compare(expression, scope);
    case Kind::kConditional:
      return evaluate_conditional(expression, scope);
  }
  GRACE_CHECK(false, "an expression of no kind");
}

Result<Value> Interpreter::evaluate_conditional(const Expression& expression, Scope& scope) {
  const bool holds = is_true(GRACE_TRY(evaluate(*expression.parts[0], scope)));
  if (holds) return evaluate(*expression.parts[1], scope);
  if (expression.parts[2] != nullptr) return evaluate(*expression.parts[2], scope);
  return Value::undefined("an inline `if` whose condition is false, without `else`");
}

Result<Value> Interpreter::evaluate_dict(const Expression& expression, Scope& scope) {
  Dict dict;
  for (std::size_t i = 0; i + 1 < expression.parts.size(); i += 2) {
    Value key = GRACE_TRY(evaluate(*expression.parts[i], scope));
    Value value = GRACE_TRY(evaluate(*expression.parts[i + 1], scope));
    if (!key.is_string() && !key.is_number() && !key.is_none())
      return unsupported(fmt::format("a {} as a key", type_name(key)));
    GRACE_TRY(spend(2 * sizeof(Value) + dict.items.size()));
    dict.set(std::move(key), std::move(value));
  }
  return made(std::move(dict));
}

Result<Value> Interpreter::evaluate_compare(const Expression& expression, Scope& scope) {
  Value left = GRACE_TRY(evaluate(*expression.parts[0], scope));
  for (std::size_t i = 0; i < expression.operators.size(); ++i) {
    Value right = GRACE_TRY(evaluate(*expression.parts[i + 1], scope));
    const bool holds = GRACE_TRY(compare(expression.operators[i], left, right));
    if (!holds) return Value::of(false);
    left = std::move(right);
  }
  return Value::of(true);
}

Result<Value> Interpreter::evaluate_slice(const Expression& expression, Scope& scope) {
  const Value value = GRACE_TRY(evaluate(*expression.parts[0], scope));
  std::array<std::optional<Value>, 3> bounds;
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    if (expression.parts[i + 1] == nullptr) continue;
    Value bound = GRACE_TRY(evaluate(*expression.parts[i + 1], scope));
    if (!bound.is_none()) bounds[i] = std::move(bound);
  }
  return slice(value, bounds[0], bounds[1], bounds[2]);
}

// The innermost of a chain without an input of its own takes `input`.
Result<Value> Interpreter::evaluate_filter(const Expression& expression, const Value& input, Scope& scope) {
  Value value = input;
  if (const ExpressionPtr& inner = expression.parts[0]; inner != nullptr) {
    const bool is_chain = inner->kind == Expression::Kind::kFilter;
    value = is_chain ? GRACE_TRY(evaluate_filter(*inner, input, scope)) : GRACE_TRY(evaluate(*inner, scope));
  }
  const Arguments arguments = GRACE_TRY(evaluate_arguments(expression, scope));
  line_ = expression.line;
  return filter(expression.text, value, arguments);
}

Result<Value> Interpreter::call(const Value& callee, const Arguments& arguments) {
  const Function* function = callee.function();
  if (callee.is_undefined()) return undefined_error(callee);
  if (function == nullptr) return invalid_input(fmt::format("a {} cannot be called", type_name(callee)));
  if (function->macro != nullptr) return call_macro(*function, arguments);
  if (function->self != nullptr) return method(*function->self, function->name, arguments);
  return global_function(function->name, arguments);
}

Result<Value> Interpreter::call_macro(const Function& function, const Arguments& arguments) {
  const Statement& macro = *function.macro;
  const bool is_caller = macro.kind == Statement::Kind::kCall;
  Arguments given = arguments;
  Scope inner(function.scope);
  const auto caller = std::ranges::find(given.named, "caller", &std::pair<std::string, Value>::first);
  if (caller != given.named.end()) {
    inner.set("caller", std::move(caller->second));
    given.named.erase(caller);
  }
  std::vector<std::string_view> names;
  if (!is_caller)
    for (const auto& parameter : macro.parameters) names.push_back(parameter.first);
  const std::vector<std::optional<Value>> bound = GRACE_TRY(bind_arguments(given, names));
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto& [name, fallback] = macro.parameters[i];
    if (bound[i].has_value()) {
      inner.set(name, *bound[i]);
    } else if (fallback == nullptr) {
      inner.set(name, Value::undefined(fmt::format("parameter '{}' was not provided", name)));
    } else {
      Value value = GRACE_TRY(evaluate(*fallback, inner));
      inner.set(name, std::move(value));
    }
  }
  std::string text = GRACE_TRY(text_of_block(macro.body, inner));
  return Value::of(std::move(text));
}

}  // namespace grace::jinja
