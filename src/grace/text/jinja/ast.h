// A parsed template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "grace/text/jinja/value.h"

namespace grace::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

// An operator in a chain, a call or a filter lies one deeper than the one before it.
inline constexpr int kMaxDepth = 300;

struct Expression {
  enum class Kind {
    kConstant,     // constant
    kName,         // text
    kList,         // parts
    kTuple,        // parts
    kDict,         // parts: key, value, key, value, …
    kAttribute,    // parts[0].text
    kItem,         // parts[0][parts[1]]
    kSlice,        // parts[0][parts[1]:parts[2]:parts[3]]; any of the three may be null
    kCall,         // parts[0](parts[1…], named)
    kFilter,       // parts[0] | text(parts[1…], named); parts[0] is null for the text of a block
    kTest,         // parts[0] is text(parts[1…], named)
    kNegative,     // -parts[0]
    kPositive,     // +parts[0]
    kNot,          // not parts[0]
    kAnd,          // parts[0] and parts[1]
    kOr,           // parts[0] or parts[1]
    kBinary,       // parts[0] text parts[1]
    kConcat,       // parts joined by ~
    kCompare,      // parts[0] operators[0] parts[1] operators[1] …
    kConditional,  // parts[0] ? parts[1] : parts[2], which may be null
  };
  Kind kind = Kind::kConstant;
  int line = 0;
  int depth = 1;  // of the deepest expression in it, itself included
  std::string text;
  Value constant;
  std::vector<ExpressionPtr> parts;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  std::vector<std::string> operators;
};

struct Statement;
using Block = std::vector<Statement>;

struct Statement {
  enum class Kind {
    kData,      // text
    kOutput,    // value
    kFor,       // target in value if condition: body, else otherwise
    kIf,        // if condition: body, else otherwise
    kSet,       // target = value
    kSetBlock,  // target = body's text, through value if that is a filter
    kMacro,     // text(parameters): body
    kScope,     // body with names of its own; `{% generation %}`
    kWith,      // the same with targets[i] = values[i]
    kFilter,    // body's text through value
    kCall,      // value, a call, with body as `caller`
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kData;
  int line = 0;
  std::string text;
  ExpressionPtr target;
  ExpressionPtr value;
  ExpressionPtr condition;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // with defaults, or null
  Block body;
  Block otherwise;
};

}  // namespace grace::jinja
