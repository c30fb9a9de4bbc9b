#include "grace/text/jinja/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace grace::jinja {

using Kind = Token::Kind;

namespace {

Result<ExpressionPtr> nothing() { return ExpressionPtr(); }

std::string shown(const Token& token) {
  switch (token.kind) {
    case Kind::kEnd:
      return "the end of the template";
    case Kind::kData:
      return "text";
    case Kind::kOutputBegin:
      return "`{{`";
    case Kind::kOutputEnd:
      return "`}}`";
    case Kind::kStatementBegin:
      return "`{%`";
    case Kind::kStatementEnd:
      return "`%}`";
    case Kind::kString:
      return "a string";
    default:
      return fmt::format("`{}`", token.text);
  }
}

}  // namespace

Error ExpressionParser::fail(std::string_view what) const {
  return invalid_input(fmt::format("{}:{}: {}", place_, peek().line, what));
}
Error ExpressionParser::fail_unsupported(std::string_view what) const {
  return unsupported(fmt::format("{}:{}: {}", place_, peek().line, what));
}
Error ExpressionParser::unexpected(std::string_view expected) const {
  return fail(fmt::format("{} where {} was expected", shown(peek()), expected));
}

Status ExpressionParser::Level::check() const {
  if (parser_.level_ <= kMaxNesting) return {};
  return parser_.fail(fmt::format("nested deeper than {}", kMaxNesting));
}

ExpressionPtr ExpressionParser::make(Expression::Kind kind, std::string text) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = peek().line;
  node->text = std::move(text);
  return node;
}

Status ExpressionParser::adopt(Expression& parent, Result<ExpressionPtr> child) const {
  ExpressionPtr node = GRACE_TRY(std::move(child));
  if (node != nullptr) parent.depth = std::max(parent.depth, node->depth + 1);
  parent.parts.push_back(std::move(node));
  if (parent.depth > kMaxDepth) return fail(fmt::format("an expression deeper than {}", kMaxDepth));
  return {};
}

bool ExpressionParser::skip_operator(std::string_view text) {
  if (!is_operator(text)) return false;
  next();
  return true;
}
bool ExpressionParser::skip_name(std::string_view text) {
  if (!is_name(text)) return false;
  next();
  return true;
}
Status ExpressionParser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) return unexpected(fmt::format("`{}`", text));
  return {};
}
Result<std::string> ExpressionParser::expect_name() {
  if (!is(Kind::kName)) return unexpected("a name");
  return next().text;
}
Status ExpressionParser::expect_end_of_statement() {
  if (!is(Kind::kStatementEnd)) return unexpected("`%}`");
  next();
  return {};
}

Result<ExpressionPtr> ExpressionParser::expression(bool conditional) {
  const Level level(*this);
  GRACE_TRY(level.check());
  ExpressionPtr node = GRACE_TRY(or_rule());
  while (conditional && is_name("if")) {
    ExpressionPtr choice = make(Expression::Kind::kConditional);
    next();
    GRACE_TRY(adopt(*choice, or_rule()));
    GRACE_TRY(adopt(*choice, std::move(node)));
    GRACE_TRY(adopt(*choice, skip_name("else") ? expression() : nothing()));
    node = std::move(choice);
  }
  return node;
}

Result<ExpressionPtr> ExpressionParser::tuple_or_expression(bool conditional) {
  ExpressionPtr first = GRACE_TRY(expression(conditional));
  if (!is_operator(",")) return first;
  ExpressionPtr tuple = make(Expression::Kind::kTuple);
  GRACE_TRY(adopt(*tuple, std::move(first)));
  while (skip_operator(",")) {
    const bool ends = is(Kind::kOutputEnd) || is(Kind::kStatementEnd) || is_operator(")") || is_name("in");
    if (ends) break;
    GRACE_TRY(adopt(*tuple, expression(conditional)));
  }
  return tuple;
}

Result<ExpressionPtr> ExpressionParser::target(bool attributes) {
  const auto one = [this]() -> Result<ExpressionPtr> {
    const Level level(*this);
    GRACE_TRY(level.check());
    if (skip_operator("(")) {
      ExpressionPtr inner = GRACE_TRY(target(false));
      GRACE_TRY(expect_operator(")"));
      return inner;
    }
    static constexpr std::array<std::string_view, 6> kConstants = {"true", "false", "none",
                                                                   "True", "False", "None"};
    if (is(Kind::kName) && std::ranges::find(kConstants, peek().text) != kConstants.end())
      return fail(fmt::format("`{}` cannot be set", peek().text));
    ExpressionPtr name = make(Expression::Kind::kName);
    name->text = GRACE_TRY(expect_name());
    return name;
  };
  ExpressionPtr first = GRACE_TRY(one());
  if (attributes && skip_operator(".")) {
    ExpressionPtr attribute = make(Expression::Kind::kAttribute);
    attribute->text = GRACE_TRY(expect_name());
    GRACE_TRY(adopt(*attribute, std::move(first)));
    return attribute;
  }
  if (!is_operator(",")) return first;
  ExpressionPtr tuple = make(Expression::Kind::kTuple);
  GRACE_TRY(adopt(*tuple, std::move(first)));
  while (skip_operator(",") && !is_name("in") && !is_operator("=")) GRACE_TRY(adopt(*tuple, one()));
  return tuple;
}

Result<ExpressionPtr> ExpressionParser::left_to_right(std::span<const std::string_view> operators,
                                                      Rule operand) {
  ExpressionPtr node = GRACE_TRY((this->*operand)());
  while (is(Kind::kOperator)) {
    const auto* found = std::ranges::find(operators, std::string_view(peek().text)).base();
    if (found == operators.data() + operators.size()) break;
    ExpressionPtr binary = make(Expression::Kind::kBinary, next().text);
    GRACE_TRY(adopt(*binary, std::move(node)));
    GRACE_TRY(adopt(*binary, (this->*operand)()));
    node = std::move(binary);
  }
  return node;
}

Result<ExpressionPtr> ExpressionParser::or_rule() {
  ExpressionPtr node = GRACE_TRY(and_rule());
  while (is_name("or")) {
    ExpressionPtr either = make(Expression::Kind::kOr);
    next();
    GRACE_TRY(adopt(*either, std::move(node)));
    GRACE_TRY(adopt(*either, and_rule()));
    node = std::move(either);
  }
  return node;
}

Result<ExpressionPtr> ExpressionParser::and_rule() {
  ExpressionPtr node = GRACE_TRY(not_rule());
  while (is_name("and")) {
    ExpressionPtr both = make(Expression::Kind::kAnd);
    next();
    GRACE_TRY(adopt(*both, std::move(node)));
    GRACE_TRY(adopt(*both, not_rule()));
    node = std::move(both);
  }
  return node;
}

Result<ExpressionPtr> ExpressionParser::not_rule() {
  const Level level(*this);
  GRACE_TRY(level.check());
  if (!is_name("not")) return compare();
  ExpressionPtr node = make(Expression::Kind::kNot);
  next();
  GRACE_TRY(adopt(*node, not_rule()));
  return node;
}

Result<ExpressionPtr> ExpressionParser::compare() {
  static constexpr std::array<std::string_view, 6> kOperators = {"==", "!=", "<", "<=", ">", ">="};
  ExpressionPtr first = GRACE_TRY(sum());
  ExpressionPtr node;
  while (true) {
    std::string found;
    if (is(Kind::kOperator) &&
        std::ranges::find(kOperators, std::string_view(peek().text)) != kOperators.end()) {
      found = next().text;
    } else if (skip_name("in")) {
      found = "in";
    } else if (is_name("not") && peek(1).kind == Kind::kName && peek(1).text == "in") {
      next();
      next();
      found = "not in";
    } else {
      break;
    }
    if (node == nullptr) {
      node = make(Expression::Kind::kCompare);
      GRACE_TRY(adopt(*node, std::move(first)));
    }
    node->operators.push_back(std::move(found));
    GRACE_TRY(adopt(*node, sum()));
  }
  return node != nullptr ? std::move(node) : std::move(first);
}

Result<ExpressionPtr> ExpressionParser::sum() {
  static constexpr std::array<std::string_view, 2> kOperators = {"+", "-"};
  return left_to_right(kOperators, &ExpressionParser::concat);
}
Result<ExpressionPtr> ExpressionParser::product() {
  static constexpr std::array<std::string_view, 4> kOperators = {"*", "/", "//", "%"};
  return left_to_right(kOperators, &ExpressionParser::power);
}
Result<ExpressionPtr> ExpressionParser::power() {
  static constexpr std::array<std::string_view, 1> kOperators = {"**"};
  return left_to_right(kOperators, &ExpressionParser::unary_with_filter);
}

Result<ExpressionPtr> ExpressionParser::concat() {
  ExpressionPtr first = GRACE_TRY(product());
  if (!is_operator("~")) return first;
  ExpressionPtr node = make(Expression::Kind::kConcat);
  GRACE_TRY(adopt(*node, std::move(first)));
  while (skip_operator("~")) GRACE_TRY(adopt(*node, product()));
  return node;
}

Result<ExpressionPtr> ExpressionParser::unary(bool with_filter) {
  const Level level(*this);
  GRACE_TRY(level.check());
  ExpressionPtr node;
  if (is_operator("-") || is_operator("+")) {
    node = make(is_operator("-") ? Expression::Kind::kNegative : Expression::Kind::kPositive);
    next();
    GRACE_TRY(adopt(*node, unary(false)));
  } else {
    node = GRACE_TRY(primary());
  }
  node = GRACE_TRY(postfix(std::move(node)));
  return with_filter ? filters_and_tests(std::move(node)) : Result<ExpressionPtr>(std::move(node));
}

Result<ExpressionPtr> ExpressionParser::primary() {
  if (is(Kind::kString) || is(Kind::kInteger) || is(Kind::kFloat)) return literal();
  if (is_operator("[")) return list_literal();
  if (is_operator("{")) return dict_literal();
  if (skip_operator("(")) {
    ExpressionPtr inner;
    if (is_operator(")")) {
      inner = make(Expression::Kind::kTuple);
    } else {
      inner = GRACE_TRY(tuple_or_expression());
    }
    GRACE_TRY(expect_operator(")"));
    return inner;
  }
  if (!is(Kind::kName)) return unexpected("an expression");
  const std::string& name = peek().text;
  ExpressionPtr node = make(Expression::Kind::kConstant);
  if (name == "true" || name == "True") {
    node->constant = Value::of(true);
  } else if (name == "false" || name == "False") {
    node->constant = Value::of(false);
  } else if (name == "none" || name == "None") {
    node->constant = Value::none();
  } else {
    node->kind = Expression::Kind::kName;
    node->text = name;
  }
  next();
  return node;
}

Result<ExpressionPtr> ExpressionParser::literal() {
  ExpressionPtr node = make(Expression::Kind::kConstant);
  if (is(Kind::kString)) {
    std::string text;
    while (is(Kind::kString)) text += next().text;  // neighbours are one
    node->constant = Value::of(std::move(text));
    return node;
  }
  const std::string text = peek().text;
  const char* end = text.data() + text.size();
  if (is(Kind::kInteger)) {
    std::int64_t value = 0;
    if (std::from_chars(text.data(), end, value).ec != std::errc())
      return fail_unsupported(fmt::format("`{}` has over 63 bits", text));
    node->constant = Value::of(value);
  } else {
    double value = 0;
    if (std::from_chars(text.data(), end, value).ec != std::errc())
      return fail_unsupported(fmt::format("`{}` is beyond a float", text));
    node->constant = Value::of(value);
  }
  next();
  return node;
}

Result<ExpressionPtr> ExpressionParser::list_literal() {
  ExpressionPtr node = make(Expression::Kind::kList);
  next();
  while (!is_operator("]")) {
    if (!node->parts.empty()) GRACE_TRY(expect_operator(","));
    if (is_operator("]")) break;
    GRACE_TRY(adopt(*node, expression()));
  }
  next();
  return node;
}

Result<ExpressionPtr> ExpressionParser::dict_literal() {
  ExpressionPtr node = make(Expression::Kind::kDict);
  next();
  while (!is_operator("}")) {
    if (!node->parts.empty()) GRACE_TRY(expect_operator(","));
    if (is_operator("}")) break;
    GRACE_TRY(adopt(*node, expression()));
    GRACE_TRY(expect_operator(":"));
    GRACE_TRY(adopt(*node, expression()));
  }
  next();
  return node;
}

Result<ExpressionPtr> ExpressionParser::postfix(ExpressionPtr node) {
  while (true) {
    if (is_operator(".")) {
      node = GRACE_TRY(dot(std::move(node)));
    } else if (is_operator("[")) {
      node = GRACE_TRY(subscript(std::move(node)));
    } else if (is_operator("(")) {
      node = GRACE_TRY(call(std::move(node)));
    } else {
      return node;
    }
  }
}

Result<ExpressionPtr> ExpressionParser::call(ExpressionPtr callee) {
  ExpressionPtr outer = make(Expression::Kind::kCall);
  GRACE_TRY(adopt(*outer, std::move(callee)));
  GRACE_TRY(arguments(*outer));
  return outer;
}

Result<ExpressionPtr> ExpressionParser::dot(ExpressionPtr node) {
  ExpressionPtr outer = make(Expression::Kind::kAttribute);
  next();
  GRACE_TRY(adopt(*outer, std::move(node)));
  if (is(Kind::kInteger)) {
    outer->kind = Expression::Kind::kItem;
    GRACE_TRY(adopt(*outer, literal()));
  } else {
    outer->text = GRACE_TRY(expect_name());
  }
  return outer;
}

Result<ExpressionPtr> ExpressionParser::subscript(ExpressionPtr node) {
  ExpressionPtr outer = make(Expression::Kind::kItem);
  next();
  GRACE_TRY(adopt(*outer, std::move(node)));
  GRACE_TRY(adopt(*outer, is_operator(":") ? nothing() : expression()));
  if (is_operator(":")) {
    outer->kind = Expression::Kind::kSlice;
    for (int i = 0; i < 2; ++i) {
      const bool given = skip_operator(":") && !is_operator(":") && !is_operator("]");
      GRACE_TRY(adopt(*outer, given ? expression() : nothing()));
    }
  }
  if (is_operator(",")) return fail_unsupported("an index of several parts");
  GRACE_TRY(expect_operator("]"));
  return outer;
}

Result<ExpressionPtr> ExpressionParser::filters_and_tests(ExpressionPtr node) {
  while (true) {
    if (is_operator("|")) {
      node = GRACE_TRY(filters(std::move(node)));
    } else if (is_name("is")) {
      node = GRACE_TRY(test(std::move(node)));
    } else if (is_operator("(")) {
      node = GRACE_TRY(call(std::move(node)));
    } else {
      return node;
    }
  }
}

Result<ExpressionPtr> ExpressionParser::one_filter(ExpressionPtr input) {
  ExpressionPtr filter = make(Expression::Kind::kFilter);
  filter->text = GRACE_TRY(expect_name());
  GRACE_TRY(adopt(*filter, std::move(input)));
  if (is_operator("(")) GRACE_TRY(arguments(*filter));
  return filter;
}

Result<ExpressionPtr> ExpressionParser::filters(ExpressionPtr node) {
  while (skip_operator("|")) node = GRACE_TRY(one_filter(std::move(node)));
  return node;
}

Result<ExpressionPtr> ExpressionParser::first_filter() {
  ExpressionPtr first = GRACE_TRY(one_filter(nullptr));
  return filters(std::move(first));
}

Result<ExpressionPtr> ExpressionParser::test(ExpressionPtr tested) {
  next();
  const bool negated = skip_name("not");
  ExpressionPtr node = make(Expression::Kind::kTest);
  node->text = GRACE_TRY(expect_name());
  GRACE_TRY(adopt(*node, std::move(tested)));
  const bool takes_one =
      is(Kind::kString) || is(Kind::kInteger) || is(Kind::kFloat) || is_operator("[") || is_operator("{") ||
      (is(Kind::kName) && !is_name("else") && !is_name("or") && !is_name("and") && !is_name("is"));
  if (is_operator("(")) {
    GRACE_TRY(arguments(*node));
  } else if (takes_one) {
    ExpressionPtr argument = GRACE_TRY(primary());
    GRACE_TRY(adopt(*node, postfix(std::move(argument))));
  }
  if (!negated) return node;
  ExpressionPtr opposite = make(Expression::Kind::kNot);
  GRACE_TRY(adopt(*opposite, std::move(node)));
  return opposite;
}

Status ExpressionParser::arguments(Expression& call) {
  const Level level(*this);
  GRACE_TRY(level.check());
  GRACE_TRY(expect_operator("("));
  for (bool first = true; !is_operator(")"); first = false) {
    if (!first) GRACE_TRY(expect_operator(","));
    if (is_operator(")")) break;
    if (is_operator("*") || is_operator("**"))
      return fail_unsupported(fmt::format("`{}` before an argument", peek().text));
    const bool is_named = is(Kind::kName) && peek(1).kind == Kind::kOperator && peek(1).text == "=";
    if (is_named) {
      std::string name = next().text;
      next();
      ExpressionPtr value = GRACE_TRY(expression());
      call.depth = std::max(call.depth, value->depth + 1);
      call.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!call.named.empty()) return fail("an argument without a name behind one with a name");
      GRACE_TRY(adopt(call, expression()));
    }
  }
  next();
  return {};
}

}  // namespace grace::jinja
