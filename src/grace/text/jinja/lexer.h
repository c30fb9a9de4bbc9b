// A template's text as tokens: data, and what stands in tags.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "grace/base/result.h"

namespace grace::jinja {

struct Token {
  enum class Kind {
    kData,
    kOutputBegin,     // {{
    kOutputEnd,       // }}
    kStatementBegin,  // {%
    kStatementEnd,    // %}
    kName,
    kString,  // text: without quotes, escapes resolved
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int line = 1;  // from 1
};

// The last token is kEnd. White space around tags goes as with trim_blocks and lstrip_blocks; comments are
// gone, raw blocks are data. Errors: `PLACE:LINE: …`, invalid_input, or unsupported. REQUIRES: source is
// UTF-8.
Result<std::vector<Token>> tokenize(std::string_view source, std::string_view place);

}  // namespace grace::jinja
