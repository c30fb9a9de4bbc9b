#include "grace/model/config_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>

#include "grace/files/json_file.h"

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

Result<int> read_count_or(const Json& json, std::string_view key, std::string_view place, int otherwise) {
  if (!is_set(json, key)) return otherwise;
  return static_cast<int>(GRACE_TRY(get_int(json, key, place, 0, kMaxSize)));
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
  // Off, as the field would say it.
  const Json off = found->is_boolean() ? Json(false) : found->is_number() ? Json(0) : Json();
  return unsupported(fmt::format("{}: {} is {}, only {} is supported", place, key, shown(*found),
                                 shown(value.is_null() ? off : value)));
}

Result<std::string> read_one_of(const Json& json, std::string_view key, std::string_view place,
                                std::initializer_list<std::string_view> values, std::string_view otherwise) {
  if (!is_set(json, key)) return std::string(otherwise);
  const Json& found = json.at(std::string(key));
  for (const std::string_view value : values)
    if (found == Json(value)) return std::string(value);
  return unsupported(
      fmt::format("{}: {} is {}, not one of {}", place, key, shown(found), fmt::join(values, ", ")));
}

Result<std::vector<int>> read_moe_layers(const Json& json, std::string_view place, int num_layers,
                                         int first_dense) {
  const int first = GRACE_TRY(read_count_or(json, "first_k_dense_replace", place, first_dense));
  const int sparse_step = GRACE_TRY(read_size_or(json, "decoder_sparse_step", place, kMaxLayers, 1));
  const int frequency = GRACE_TRY(read_size_or(json, "moe_layer_freq", place, kMaxLayers, 1));
  std::vector<int> dense;
  if (is_set(json, "mlp_only_layers")) {
    const Json& layers = json.at("mlp_only_layers");
    if (!layers.is_array())
      return invalid_input(fmt::format("{}: mlp_only_layers is {}, not a list", place, shown(layers)));
    for (const Json& layer : layers) {
      const Json holder = {{"mlp_only_layers", layer}};
      dense.push_back(
          static_cast<int>(GRACE_TRY(get_int(holder, "mlp_only_layers", place, 0, num_layers - 1))));
    }
  }
  std::vector<int> moe;
  for (int layer = first; layer < num_layers; ++layer) {
    const bool by_step = (layer + 1) % sparse_step == 0 && layer % frequency == 0;
    if (by_step && std::ranges::find(dense, layer) == dense.end()) moe.push_back(layer);
  }
  if (moe.empty()) return unsupported(fmt::format("{}: none of {} layers is MoE", place, num_layers));
  return moe;
}

}  // namespace grace
