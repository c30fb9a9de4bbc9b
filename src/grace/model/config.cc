#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "grace/files/json_file.h"
#include "grace/files/mapped_file.h"
#include "grace/model/architecture.h"
#include "grace/model/config_fields.h"
#include "grace/model/model.h"

namespace grace {
namespace {

Result<const Architecture*> architecture_of(const Json& json, std::string_view place) {
  if (!is_set(json, "architectures")) {
    const std::string type = GRACE_TRY(get_string(json, "model_type", place));
    const auto known = known_architectures();
    const auto found = std::ranges::find(known, type, [](const Architecture* a) { return a->model_type; });
    return found != known.end() ? Result<const Architecture*>(*found) : find_architecture(type, place);
  }
  const Json& names = json.at("architectures");
  if (!names.is_array() || names.empty() || !names[0].is_string()) {
    return invalid_input(fmt::format("{}: architectures is {}, not a list of names", place, shown(names)));
  }
  return find_architecture(names[0].get<std::string>(), place);
}

// Adds the end-of-text ids that only generation_config.json has.
Status add_generation_eos(const std::filesystem::path& path, std::vector<std::int32_t>& ids) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  const Json json = GRACE_TRY(read_json(path));
  if (!json.is_object())
    return invalid_input(fmt::format("{}: {} is not an object", path.string(), shown(json)));
  for (const std::int32_t id : GRACE_TRY(read_eos_token_ids(json, path.string()))) {
    if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
  }
  return {};
}

// The last name of the path as the system sees it, so that `.` and a trailing slash have one too.
std::string name_of_folder(const std::filesystem::path& folder) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::canonical(folder, error);
  return error ? folder.filename().string() : whole.filename().string();
}

}  // namespace

Result<ModelConfig> parse_model_config(std::string_view text, std::string_view place) {
  const Json json = GRACE_TRY(parse_json(text, place));
  if (!json.is_object()) return invalid_input(fmt::format("{}: {} is not an object", place, shown(json)));
  const Architecture* architecture = GRACE_TRY(architecture_of(json, place));
  return architecture->read_config(json, place);
}

Result<ModelConfig> read_model_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  const std::string text = GRACE_TRY(read_text(path));
  ModelConfig config = GRACE_TRY(parse_model_config(text, path.string()));
  GRACE_TRY(add_generation_eos(folder / "generation_config.json", config.eos_token_ids));
  config.name = name_of_folder(folder);
  return config;
}

}  // namespace grace
