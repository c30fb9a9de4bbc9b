// Fields of tokenizer.json's components, with messages that name the component.
#pragma once

#include <cstdint>
#include <string_view>

#include "grace/base/result.h"
#include "grace/files/json.h"
#include "grace/text/regex.h"

namespace grace {

constexpr std::int64_t kMaxTokenId = INT32_MAX - 1;

// The component's `type`, a view into `component`. Errors: invalid_input when there is none.
Result<std::string_view> get_type(const Json& component, std::string_view place);
// A view into `object`. Errors: invalid_input unless `key` holds an array.
Result<const Json*> get_array(const Json& object, std::string_view key, std::string_view place);
// `fallback` when `key` is absent or null. Errors: invalid_input for another type.
Result<bool> get_bool_or(const Json& object, std::string_view key, bool fallback, std::string_view place);
// The empty string when `key` is absent or null.
Result<std::string> get_string_or_empty(const Json& object, std::string_view key, std::string_view place);
// `pattern`: {"String": …} or {"Regex": …}. Errors: those of Regex::compile; unsupported for another form.
Result<Regex> get_pattern(const Json& object, std::string_view place);
// null when `key` is absent. A view into `object`, or to a constant.
const Json& field_or_null(const Json& object, std::string_view key);

}  // namespace grace
