#include "grace/text/json_fields.h"

#include <fmt/format.h>

#include "grace/files/json_file.h"

namespace grace {

const Json& field_or_null(const Json& object, std::string_view key) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(std::string(key));
  return found == object.end() ? kNull : *found;
}

Result<std::string_view> get_type(const Json& component, std::string_view place) {
  const Json& type = field_or_null(component, "type");
  if (!type.is_string()) return invalid_input(fmt::format("{}: no `type`", place));
  return std::string_view(type.get_ref<const std::string&>());
}

Result<const Json*> get_array(const Json& object, std::string_view key, std::string_view place) {
  const Json& field = field_or_null(object, key);
  if (!field.is_array()) return invalid_input(fmt::format("{}: `{}` is no array", place, key));
  return &field;
}

Result<bool> get_bool_or(const Json& object, std::string_view key, bool fallback, std::string_view place) {
  if (field_or_null(object, key).is_null()) return fallback;
  return get_bool(object, key, place);
}

Result<std::string> get_string_or_empty(const Json& object, std::string_view key, std::string_view place) {
  if (field_or_null(object, key).is_null()) return std::string();
  return get_string(object, key, place);
}

Result<Regex> get_pattern(const Json& object, std::string_view place) {
  const Json& pattern = field_or_null(object, "pattern");
  if (pattern.is_object() && pattern.contains("String"))
    return Regex::compile(escape_regex(GRACE_TRY(get_string(pattern, "String", place))), place);
  if (pattern.is_object() && pattern.contains("Regex"))
    return Regex::compile(GRACE_TRY(get_string(pattern, "Regex", place)), place);
  return invalid_input(fmt::format("{}: `pattern` is neither a String nor a Regex", place));
}

}  // namespace grace
