#include "grace/model/config_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace grace {
namespace {

bool says_off(const Json& value) {
  return value.is_null() || value == Json(false) || (value.is_number() && value.get<double>() == 0);
}

Result<double> read_positive(const Json& json, std::string_view key, std::string_view place) {
  const double value = GRACE_TRY(get_number(json, key, place));
  if (value <= 0) return invalid_input(fmt::format("{}: {} is {}, not above 0", place, key, value));
  return value;
}

// Errors: unsupported when the object asks for anything but plain rotary embeddings.
Status expect_plain_rope(const Json& rope, std::string_view place) {
  for (const char* key : {"rope_type", "type"}) GRACE_TRY(expect_only(rope, key, place, "default"));
  if (is_set(rope, "partial_rotary_factor")) {
    const double part = GRACE_TRY(get_number(rope, "partial_rotary_factor", place));
    if (part != 1)
      return unsupported(fmt::format("{}: partial_rotary_factor is {}, only 1 is supported", place, part));
  }
  return {};
}

}  // namespace

bool is_set(const Json& json, std::string_view key) {
  const auto found = json.find(std::string(key));
  return found != json.end() && !found->is_null();
}

Result<int> read_size(const Json& json, std::initializer_list<std::string_view> keys, std::string_view place,
                      std::int64_t highest) {
  const auto set = std::ranges::find_if(keys, [&](std::string_view key) { return is_set(json, key); });
  if (set == keys.end()) return invalid_input(fmt::format("{}: {} is missing", place, *keys.begin()));
  return static_cast<int>(GRACE_TRY(get_int(json, *set, place, 1, highest)));
}

Result<int> read_size_or(const Json& json, std::string_view key, std::string_view place, std::int64_t highest,
                         std::int64_t otherwise) {
  if (!is_set(json, key)) return static_cast<int>(otherwise);
  return read_size(json, {key}, place, highest);
}

Result<bool> read_flag_or(const Json& json, std::string_view key, std::string_view place, bool otherwise) {
  if (!is_set(json, key)) return otherwise;
  return get_bool(json, key, place);
}

Result<double> read_positive_or(const Json& json, std::string_view key, std::string_view place,
                                double otherwise) {
  if (!is_set(json, key)) return otherwise;
  return read_positive(json, key, place);
}

Result<std::optional<double>> read_optional_positive(const Json& json, std::string_view key,
                                                     std::string_view place) {
  if (!is_set(json, key)) return std::optional<double>();
  return std::optional<double>(GRACE_TRY(read_positive(json, key, place)));
}

Result<double> read_plain_rope_theta(const Json& json, std::string_view place, double otherwise) {
  double theta = GRACE_TRY(read_positive_or(json, "rope_theta", place, otherwise));
  // The published spelling keeps the scaling apart from the base; transformers 5 keeps both in one object.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!is_set(json, key)) continue;
    const Json& rope = json.at(key);
    const std::string where = fmt::format("{}: {}", place, key);
    if (!rope.is_object()) return invalid_input(fmt::format("{} is {}, not an object", where, shown(rope)));
    GRACE_TRY(expect_plain_rope(rope, where));
    theta = GRACE_TRY(read_positive_or(rope, "rope_theta", where, theta));
  }
  return theta;
}

Result<std::vector<std::int32_t>> read_eos_token_ids(const Json& json, std::string_view place) {
  std::vector<std::int32_t> ids;
  if (!is_set(json, "eos_token_id")) return ids;
  const Json& value = json.at("eos_token_id");
  const Json list = value.is_array() ? value : Json::array({value});
  for (const Json& id : list) {
    const Json holder = {{"eos_token_id", id}};
    const auto token =
        static_cast<std::int32_t>(GRACE_TRY(get_int(holder, "eos_token_id", place, 0, INT32_MAX)));
    if (std::ranges::find(ids, token) == ids.end()) ids.push_back(token);
  }
  return ids;
}

Status expect_only(const Json& json, std::string_view key, std::string_view place, const Json& value) {
  const auto found = json.find(std::string(key));
  if (found == json.end() || found->is_null() || *found == value) return {};
  if (value.is_null() && says_off(*found)) return {};
  return unsupported(
      fmt::format("{}: {} is {}, only {} is supported", place, key, shown(*found), shown(value)));
}

}  // namespace grace
