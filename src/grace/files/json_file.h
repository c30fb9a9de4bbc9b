// JSON files (nlohmann::json), with errors that give the path and what stands there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "grace/base/result.h"
#include "grace/files/json.h"

namespace grace {

// Errors: io; invalid_input `path: not JSON at byte B`, and for a key that occurs twice in one object or
// nesting deeper than 64.
Result<Json> read_json(const std::filesystem::path& path);
// The same from memory; `place` stands for the path in messages.
Result<Json> parse_json(std::string_view text, std::string_view place);
// Writes atomically, indented by `indent` (-1: one line), with a newline at the end. Errors: io.
Status write_json(const std::filesystem::path& path, const Json& json, int indent = 1);

// Fields with a type and a bound. `place` names the object in messages. Errors: invalid_input when absent, of
// another type, or outside [lowest, highest].
Result<std::int64_t> get_int(const Json& object, std::string_view key, std::string_view place,
                             std::int64_t lowest, std::int64_t highest);
Result<double> get_number(const Json& object, std::string_view key, std::string_view place);  // finite
Result<bool> get_bool(const Json& object, std::string_view key, std::string_view place);
Result<std::string> get_string(const Json& object, std::string_view key, std::string_view place);

// Whether the text is UTF-8: a JSON file can hold nothing else.
bool is_utf8(const std::string& text);

// A value or key as it may stand in a message: one line, quoted, at most 80 bytes or so.
std::string shown(const Json& value);

}  // namespace grace
