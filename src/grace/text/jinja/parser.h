// Jinja's grammar, as far as chat templates use it.
#pragma once

#include <string_view>

#include "grace/base/result.h"
#include "grace/text/jinja/ast.h"

namespace grace::jinja {

// Errors: `PLACE:LINE: …`, invalid_input for what Jinja refuses too, unsupported for what only we do not
// know. REQUIRES: source is UTF-8.
Result<Block> parse_template(std::string_view source, std::string_view place);

}  // namespace grace::jinja
