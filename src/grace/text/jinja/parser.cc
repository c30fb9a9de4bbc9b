#include "grace/text/jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>

#include "grace/text/jinja/expression_parser.h"

namespace grace::jinja {
namespace {

using Kind = Token::Kind;

class StatementParser {
 public:
  StatementParser(std::vector<Token> tokens, std::string_view place) : in_(std::move(tokens), place) {}

  Result<Block> run() {
    Block block = GRACE_TRY(statements({}));
    if (!in_.is(Kind::kEnd)) return in_.unexpected("the end");
    return block;
  }

 private:
  // Until a tag whose name is one of `ends`, which is next, or the end.
  Result<Block> statements(std::initializer_list<std::string_view> ends) {
    const ExpressionParser::Level level(in_);
    GRACE_TRY(level.check());
    Block block;
    while (!in_.is(Kind::kEnd)) {
      Statement statement;
      statement.line = in_.peek().line;
      if (in_.is(Kind::kData)) {
        statement.text = in_.next().text;
      } else if (in_.is(Kind::kOutputBegin)) {
        in_.next();
        statement.kind = Statement::Kind::kOutput;
        statement.value = GRACE_TRY(in_.tuple_or_expression());
        if (!in_.is(Kind::kOutputEnd)) return in_.unexpected("`}}`");
        in_.next();
      } else {
        const bool ends_here =
            in_.peek(1).kind == Kind::kName && std::ranges::find(ends, in_.peek(1).text) != ends.end();
        if (ends_here) return block;
        in_.next();
        GRACE_TRY(tag(statement));
      }
      block.push_back(std::move(statement));
    }
    if (ends.size() > 0) return in_.unexpected(fmt::format("`{}`", *(ends.end() - 1)));
    return block;
  }

  // Behind the block, its end tag included.
  Result<Block> body_until(std::string_view end) {
    Block block = GRACE_TRY(statements({end}));
    in_.next();
    in_.next();
    GRACE_TRY(in_.expect_end_of_statement());
    return block;
  }

  Status tag(Statement& statement) {
    using Rule = Status (StatementParser::*)(Statement&);
    static constexpr std::array<std::pair<std::string_view, Rule>, 10> kRules = {{
        {"for", &StatementParser::for_tag},
        {"if", &StatementParser::if_tag},
        {"set", &StatementParser::set_tag},
        {"macro", &StatementParser::macro_tag},
        {"generation", &StatementParser::generation_tag},
        {"with", &StatementParser::with_tag},
        {"filter", &StatementParser::filter_tag},
        {"call", &StatementParser::call_tag},
        {"break", &StatementParser::jump_tag},
        {"continue", &StatementParser::jump_tag},
    }};
    static constexpr std::array<std::string_view, 8> kForeign = {"block", "extends",    "include", "import",
                                                                 "from",  "autoescape", "do",      "trans"};
    if (!in_.is(Kind::kName)) return in_.unexpected("a tag's name");
    const std::string name = in_.peek().text;
    const auto* rule =
        std::ranges::find(kRules, std::string_view(name), &std::pair<std::string_view, Rule>::first);
    if (rule != kRules.end()) return (this->*rule->second)(statement);
    if (std::ranges::find(kForeign, std::string_view(name)) != kForeign.end())
      return in_.fail_unsupported(fmt::format("tag `{}`", name));
    return in_.fail(fmt::format("unknown tag `{}`", name));
  }

  Status for_tag(Statement& statement) {
    in_.next();
    statement.kind = Statement::Kind::kFor;
    statement.target = GRACE_TRY(in_.target(false));
    if (!in_.skip_name("in")) return in_.unexpected("`in`");
    statement.value = GRACE_TRY(in_.tuple_or_expression(false));
    if (in_.skip_name("if")) statement.condition = GRACE_TRY(in_.expression());
    if (in_.is_name("recursive")) return in_.fail_unsupported("`recursive`");
    GRACE_TRY(in_.expect_end_of_statement());
    ++loops_;
    statement.body = GRACE_TRY(statements({"else", "endfor"}));
    --loops_;
    in_.next();
    if (in_.skip_name("else")) {
      GRACE_TRY(in_.expect_end_of_statement());
      statement.otherwise = GRACE_TRY(body_until("endfor"));
      return {};
    }
    in_.next();
    return in_.expect_end_of_statement();
  }

  // `elif` is an `if` in the else of the one before.
  Status if_tag(Statement& statement) {
    in_.next();
    statement.kind = Statement::Kind::kIf;
    statement.condition = GRACE_TRY(in_.tuple_or_expression(false));
    GRACE_TRY(in_.expect_end_of_statement());
    statement.body = GRACE_TRY(statements({"elif", "else", "endif"}));
    in_.next();
    if (in_.is_name("elif")) {
      const ExpressionParser::Level level(in_);
      GRACE_TRY(level.check());
      Statement inner;
      inner.line = in_.peek().line;
      GRACE_TRY(if_tag(inner));
      statement.otherwise.push_back(std::move(inner));
      return {};
    }
    if (in_.skip_name("else")) {
      GRACE_TRY(in_.expect_end_of_statement());
      statement.otherwise = GRACE_TRY(body_until("endif"));
      return {};
    }
    in_.next();
    return in_.expect_end_of_statement();
  }

  Status set_tag(Statement& statement) {
    in_.next();
    statement.target = GRACE_TRY(in_.target(true));
    if (in_.skip_operator("=")) {
      statement.kind = Statement::Kind::kSet;
      statement.value = GRACE_TRY(in_.tuple_or_expression());
      return in_.expect_end_of_statement();
    }
    statement.kind = Statement::Kind::kSetBlock;
    statement.value = GRACE_TRY(in_.filters(nullptr));
    GRACE_TRY(in_.expect_end_of_statement());
    statement.body = GRACE_TRY(body_until("endset"));
    return {};
  }

  Status macro_tag(Statement& statement) {
    in_.next();
    statement.kind = Statement::Kind::kMacro;
    statement.text = GRACE_TRY(in_.expect_name());
    GRACE_TRY(in_.expect_operator("("));
    while (!in_.is_operator(")")) {
      if (!statement.parameters.empty()) GRACE_TRY(in_.expect_operator(","));
      std::string name = GRACE_TRY(in_.expect_name());
      ExpressionPtr value;
      if (in_.skip_operator("=")) {
        value = GRACE_TRY(in_.expression());
      } else if (!statement.parameters.empty() && statement.parameters.back().second != nullptr) {
        return in_.fail("a parameter without a default behind one with a default");
      }
      statement.parameters.emplace_back(std::move(name), std::move(value));
    }
    in_.next();
    GRACE_TRY(in_.expect_end_of_statement());
    return own_body(statement, "endmacro");
  }

  // A body from which no loop outside can be left.
  Status own_body(Statement& statement, std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    statement.body = GRACE_TRY(body_until(end));
    loops_ = loops;
    return {};
  }

  Status generation_tag(Statement& statement) {
    in_.next();
    statement.kind = Statement::Kind::kScope;
    GRACE_TRY(in_.expect_end_of_statement());
    return own_body(statement, "endgeneration");
  }

  Status with_tag(Statement& statement) {
    in_.next();
    statement.kind = Statement::Kind::kWith;
    while (!in_.is(Kind::kStatementEnd)) {
      if (!statement.parameters.empty()) GRACE_TRY(in_.expect_operator(","));
      std::string name = GRACE_TRY(in_.expect_name());
      GRACE_TRY(in_.expect_operator("="));
      statement.parameters.emplace_back(std::move(name), GRACE_TRY(in_.expression()));
    }
    in_.next();
    statement.body = GRACE_TRY(body_until("endwith"));
    return {};
  }

  Status filter_tag(Statement& statement) {
    in_.next();
    statement.kind = Statement::Kind::kFilter;
    statement.value = GRACE_TRY(in_.first_filter());
    GRACE_TRY(in_.expect_end_of_statement());
    statement.body = GRACE_TRY(body_until("endfilter"));
    return {};
  }

  Status call_tag(Statement& statement) {
    in_.next();
    statement.kind = Statement::Kind::kCall;
    if (in_.is_operator("(")) return in_.fail_unsupported("a call block with parameters");
    statement.value = GRACE_TRY(in_.expression());
    if (statement.value->kind != Expression::Kind::kCall) return in_.fail("a call block without a call");
    GRACE_TRY(in_.expect_end_of_statement());
    return own_body(statement, "endcall");
  }

  Status jump_tag(Statement& statement) {
    if (loops_ == 0) return in_.fail(fmt::format("`{}` outside a loop", in_.peek().text));
    statement.kind = in_.next().text == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue;
    return in_.expect_end_of_statement();
  }

  ExpressionParser in_;
  int loops_ = 0;  // around what is being read
};

}  // namespace

Result<Block> parse_template(std::string_view source, std::string_view place) {
  return StatementParser(GRACE_TRY(tokenize(source, place)), place).run();
}

}  // namespace grace::jinja
