// The expressions within tags.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/result.h"
#include "grace/text/jinja/ast.h"
#include "grace/text/jinja/lexer.h"

namespace grace::jinja {

// Reads tokens one by one; the parser of statements shares it. Errors: as parse_template.
class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, std::string_view place)
      : tokens_(std::move(tokens)), place_(place) {}

  const Token& peek(std::size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  Token next() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool is(Token::Kind kind) const { return peek().kind == kind; }
  bool is_operator(std::string_view text) const { return is(Token::Kind::kOperator) && peek().text == text; }
  bool is_name(std::string_view text) const { return is(Token::Kind::kName) && peek().text == text; }
  bool skip_operator(std::string_view text);
  bool skip_name(std::string_view text);
  Status expect_operator(std::string_view text);
  Result<std::string> expect_name();
  Status expect_end_of_statement();

  // With `a if b else c` unless `conditional` is false.
  Result<ExpressionPtr> expression(bool conditional = true);
  // One expression, or several with commas as a tuple.
  Result<ExpressionPtr> tuple_or_expression(bool conditional = true);
  // A name, names with commas, or with `attributes` also `name.name`.
  Result<ExpressionPtr> target(bool attributes);
  // `| filter | filter` over `input`, which may be null.
  Result<ExpressionPtr> filters(ExpressionPtr input);
  // `filter | filter` over null.
  Result<ExpressionPtr> first_filter();

  ExpressionPtr make(Expression::Kind kind, std::string text = {}) const;
  Error fail(std::string_view what) const;
  Error fail_unsupported(std::string_view what) const;
  Error unexpected(std::string_view expected) const;

  // Counts nesting, so that no template overflows the stack.
  class Level {
   public:
    explicit Level(ExpressionParser& parser) : parser_(parser) { ++parser_.level_; }
    ~Level() { --parser_.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    Status check() const;

   private:
    ExpressionParser& parser_;
  };

 private:
  using Rule = Result<ExpressionPtr> (ExpressionParser::*)();
  Result<ExpressionPtr> left_to_right(std::span<const std::string_view> operators, Rule operand);
  Result<ExpressionPtr> or_rule();
  Result<ExpressionPtr> and_rule();
  Result<ExpressionPtr> not_rule();
  Result<ExpressionPtr> compare();
  Result<ExpressionPtr> sum();
  Result<ExpressionPtr> concat();
  Result<ExpressionPtr> product();
  Result<ExpressionPtr> power();
  Result<ExpressionPtr> unary_with_filter() { return unary(true); }
  Result<ExpressionPtr> unary(bool with_filter);
  Result<ExpressionPtr> primary();
  Result<ExpressionPtr> literal();
  Result<ExpressionPtr> list_literal();
  Result<ExpressionPtr> dict_literal();
  Result<ExpressionPtr> postfix(ExpressionPtr node);
  Result<ExpressionPtr> call(ExpressionPtr callee);
  Result<ExpressionPtr> dot(ExpressionPtr node);
  Result<ExpressionPtr> subscript(ExpressionPtr node);
  Result<ExpressionPtr> filters_and_tests(ExpressionPtr node);
  Result<ExpressionPtr> test(ExpressionPtr node);
  Result<ExpressionPtr> one_filter(ExpressionPtr input);
  Status arguments(Expression& call);
  // Makes `child`, which may be null, the next part of `parent`.
  Status adopt(Expression& parent, Result<ExpressionPtr> child) const;

  std::vector<Token> tokens_;
  std::string_view place_;
  std::size_t at_ = 0;
  int level_ = 0;
};

}  // namespace grace::jinja
