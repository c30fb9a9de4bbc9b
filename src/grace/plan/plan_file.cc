// The plan as JSON: docs/formats/plan.md. Written by hand, one device a line, because a general writer puts
// every expert on its own.
#include <fmt/format.h>

#include <iterator>

#include "grace/base/limits.h"
#include "grace/files/json_file.h"
#include "grace/files/mapped_file.h"
#include "grace/plan/plan.h"

namespace grace {
namespace {

constexpr std::int64_t kFormatVersion = 1;
constexpr std::string_view kNumbering = "moe_ordinal";

std::string quoted(const std::string& text) { return Json(text).dump(); }

template <typename Map, typename Print>
std::string object_of(const Map& map, Print print) {
  std::string out = "{";
  for (const auto& [key, value] : map)
    out += fmt::format("{}\n  {}: {}", out.size() == 1 ? "" : ",", quoted(key), print(value));
  return out + (map.empty() ? "}" : "\n }");
}

std::string ids_of(const std::vector<ExpertId>& experts) {
  std::string out = "[";
  for (const ExpertId expert : experts) {
    if (out.size() > 1) out += ", ";
    fmt::format_to(std::back_inserter(out), "{}", expert.value);
  }
  return out + "]";
}

std::string text_of(const Plan& plan) {
  std::string out;
  const auto put = [&out]<typename... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
  };
  put("{{\n \"format_version\": {},\n \"model\": {},\n \"num_experts\": {},\n", kFormatVersion,
      quoted(plan.model), plan.num_experts);
  put(" \"numbering\": \"{}\",\n \"decoder_layers\": [{}],\n", kNumbering,
      fmt::join(plan.decoder_layers, ", "));
  put(" \"cluster\": {{\"devices_per_node\": [{}]}},\n", fmt::join(plan.devices_per_node, ", "));
  put(" \"strategy\": {},\n \"routing\": {},\n", quoted(plan.strategy), quoted(plan.routing));
  if (plan.is_lossy()) put(" \"lossy\": true,\n");
  put(" \"provenance\": {},\n", object_of(plan.provenance, quoted));
  put(" \"figures\": {},\n", object_of(plan.figures, [](double value) { return fmt::format("{}", value); }));
  put(" \"layers\": [");
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    const LayerPlan& layer = plan.layers[i];
    put("{}\n  {{\"layer\": {}, \"decoder_layer\": {}, \"devices\": [", i == 0 ? "" : ",", i,
        plan.decoder_layers[i]);
    for (std::size_t device = 0; device < layer.primaries_of_device.size(); ++device) {
      put("{}\n   {{\"primaries\": {}, \"replicas\": {}, \"predicted_load\": {}}}", device == 0 ? "" : ",",
          ids_of(layer.primaries_of_device[device]), ids_of(layer.replicas_of_device[device]),
          layer.predicted_load[device]);
    }
    put("]");
    if (layer.cover != CoverCosts())
      put(",\n   \"cover\": {{\"node\": {}, \"device\": {}, \"price\": [{}]}}", layer.cover.node,
          layer.cover.device, fmt::join(layer.cover.price, ", "));
    for (std::size_t expert = 0; expert < layer.partners_of_expert.size(); ++expert)
      put("{}{}", expert == 0 ? ",\n   \"partners\": [" : ", ", ids_of(layer.partners_of_expert[expert]));
    if (!layer.partners_of_expert.empty()) put("]");
    put("}}");
  }
  put("\n ]\n}}\n");
  return out;
}

Result<const Json*> get_array(const Json& object, const std::string& key, std::string_view place) {
  if (!object.is_object()) return invalid_input(fmt::format("{}: not an object", place));
  const auto found = object.find(key);
  if (found == object.end()) return invalid_input(fmt::format("{}: {} is absent", place, key));
  if (!found->is_array()) return invalid_input(fmt::format("{}: {} is not a list", place, key));
  return &*found;
}

Result<const Json*> get_object(const Json& object, const std::string& key, std::string_view place) {
  const auto found = object.find(key);
  if (found == object.end()) return invalid_input(fmt::format("{}: {} is absent", place, key));
  if (!found->is_object()) return invalid_input(fmt::format("{}: {} is not an object", place, key));
  return &*found;
}

// A list of whole numbers in [0, bound].
Result<std::vector<int>> get_ints(const Json& object, const std::string& key, std::string_view place,
                                  std::int64_t bound) {
  const Json& list = *GRACE_TRY(get_array(object, key, place));
  std::vector<int> values;
  values.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Json& item = list[i];
    const bool fits = item.is_number_unsigned()
                          ? item.get<std::uint64_t>() <= static_cast<std::uint64_t>(bound)
                          : item.is_number_integer() && item.get<std::int64_t>() >= 0;
    if (!fits) {
      return invalid_input(
          fmt::format("{}: {}[{}] is {}, not a whole number in [0, {}]", place, key, i, shown(item), bound));
    }
    values.push_back(item.get<int>());
  }
  return values;
}

Result<std::vector<ExpertId>> get_experts(const Json& device, const std::string& key, std::string_view place,
                                          int num_experts) {
  const std::vector<int> values = GRACE_TRY(get_ints(device, key, place, num_experts - 1));
  std::vector<ExpertId> experts;
  experts.reserve(values.size());
  for (const int value : values) experts.push_back(ExpertId(value));
  return experts;
}

Result<CoverCosts> parse_cover(const Json& layer, std::string_view place) {
  const Json& json = *GRACE_TRY(get_object(layer, "cover", place));
  const std::string here = fmt::format("{}: cover", place);
  CoverCosts cover;
  cover.node = GRACE_TRY(get_number(json, "node", here));
  cover.device = GRACE_TRY(get_number(json, "device", here));
  const Json& prices = *GRACE_TRY(get_array(json, "price", here));
  for (std::size_t i = 0; i < prices.size(); ++i) {
    if (!prices[i].is_number())
      return invalid_input(fmt::format("{}: price[{}] is {}, not a number", here, i, shown(prices[i])));
    cover.price.push_back(prices[i].get<double>());
  }
  return cover;
}

// A list of whole numbers in [0, bound] where it stands in a list of lists; `place` names it.
Result<std::vector<std::vector<ExpertId>>> parse_partners(const Json& layer, std::string_view place,
                                                          int num_experts) {
  const Json& lists = *GRACE_TRY(get_array(layer, "partners", place));
  std::vector<std::vector<ExpertId>> partners;
  for (std::size_t expert = 0; expert < lists.size(); ++expert) {
    const Json holder = {{"partners", lists[expert]}};
    partners.push_back(
        GRACE_TRY(get_experts(holder, "partners", fmt::format("{}: expert {}", place, expert), num_experts)));
  }
  return partners;
}

Result<LayerPlan> parse_layer(const Json& json, const Plan& plan, std::size_t ordinal,
                              std::string_view place) {
  const Json& devices = *GRACE_TRY(get_array(json, "devices", place));
  const auto layer_number = static_cast<std::int64_t>(ordinal);
  GRACE_TRY(get_int(json, "layer", place, layer_number, layer_number));
  const int decoder_layer = plan.decoder_layers[ordinal];
  GRACE_TRY(get_int(json, "decoder_layer", place, decoder_layer, decoder_layer));
  LayerPlan layer;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const std::string here = fmt::format("{}: device {}", place, i);
    layer.primaries_of_device.push_back(
        GRACE_TRY(get_experts(devices[i], "primaries", here, plan.num_experts)));
    layer.replicas_of_device.push_back(
        GRACE_TRY(get_experts(devices[i], "replicas", here, plan.num_experts)));
    layer.predicted_load.push_back(GRACE_TRY(get_number(devices[i], "predicted_load", here)));
  }
  if (json.contains("cover")) layer.cover = GRACE_TRY(parse_cover(json, place));
  if (json.contains("partners"))
    layer.partners_of_expert = GRACE_TRY(parse_partners(json, place, plan.num_experts));
  return layer;
}

Status parse_words(const Json& file, std::string_view place, Plan& plan) {
  plan.model = GRACE_TRY(get_string(file, "model", place));
  plan.strategy = GRACE_TRY(get_string(file, "strategy", place));
  plan.routing = GRACE_TRY(get_string(file, "routing", place));
  const Json& provenance = *GRACE_TRY(get_object(file, "provenance", place));
  for (const auto& [key, value] : provenance.items()) {
    if (!value.is_string())
      return invalid_input(
          fmt::format("{}: provenance: {} is {}, not a string", place, quoted(key), shown(value)));
    plan.provenance[key] = value.get<std::string>();
  }
  const Json& figures = *GRACE_TRY(get_object(file, "figures", place));
  for (const auto& [key, value] : figures.items()) {
    if (!value.is_number())
      return invalid_input(
          fmt::format("{}: figures: {} is {}, not a number", place, quoted(key), shown(value)));
    plan.figures[key] = value.get<double>();
  }
  return {};
}

// A plan that changes the text says so, and none other does.
Status check_lossy(const Json& file, const Plan& plan, std::string_view place) {
  const auto found = file.find("lossy");
  if (found != file.end() && !found->is_boolean())
    return invalid_input(fmt::format("{}: lossy is {}, neither true nor false", place, shown(*found)));
  const bool says_so = found != file.end() && found->get<bool>();
  if (says_so == plan.is_lossy()) return {};
  return invalid_input(
      fmt::format("{}: lossy is {}, but {} layer has partners", place, says_so, says_so ? "no" : "a"));
}

Result<Plan> plan_of_json(const Json& file, std::string_view place) {
  if (!file.is_object()) return invalid_input(fmt::format("{}: not an object", place));
  GRACE_TRY(get_int(file, "format_version", place, kFormatVersion, kFormatVersion));
  const std::string numbering = GRACE_TRY(get_string(file, "numbering", place));
  if (numbering != kNumbering)
    return invalid_input(
        fmt::format("{}: numbering is {}, must be \"{}\"", place, quoted(numbering), kNumbering));
  Plan plan;
  GRACE_TRY(parse_words(file, place, plan));
  plan.num_experts = static_cast<int>(GRACE_TRY(get_int(file, "num_experts", place, 1, kMaxExperts)));
  plan.decoder_layers = GRACE_TRY(get_ints(file, "decoder_layers", place, kMaxDecoderLayer));
  const Json& cluster = *GRACE_TRY(get_object(file, "cluster", place));
  plan.devices_per_node =
      GRACE_TRY(get_ints(cluster, "devices_per_node", fmt::format("{}: cluster", place), kMaxDevices));
  const Json& layers = *GRACE_TRY(get_array(file, "layers", place));
  if (layers.size() != plan.decoder_layers.size()) {
    return invalid_input(fmt::format("{}: {} layers, but {} decoder layers", place, layers.size(),
                                     plan.decoder_layers.size()));
  }
  for (std::size_t i = 0; i < layers.size(); ++i)
    plan.layers.push_back(GRACE_TRY(parse_layer(layers[i], plan, i, fmt::format("{}: layer {}", place, i))));
  const std::vector<std::string> found = violations(plan);
  if (!found.empty()) return invalid_input(fmt::format("{}: {}", place, found.front()));
  GRACE_TRY(check_lossy(file, plan, place));
  return plan;
}

}  // namespace

Result<Plan> parse_plan(std::string_view text, std::string_view place) {
  const Json file = GRACE_TRY(parse_json(text, place));
  return plan_of_json(file, place);
}

Result<Plan> read_plan(const std::filesystem::path& path) {
  const std::string text = GRACE_TRY(read_text(path));
  return parse_plan(text, path.string());
}

Status write_plan(const std::filesystem::path& path, const Plan& plan) {
  const std::vector<std::string> found = violations(plan);
  if (!found.empty()) return invalid_input(fmt::format("{}: {}", path.string(), found.front()));
  return write_text_atomically(path, text_of(plan));
}

}  // namespace grace
