// vllm-ascend's expert_map_path: each device's experts, layer by layer, no expert twice on a device.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "grace/base/limits.h"
#include "grace/files/json_file.h"
#include "grace/interop/export/engines.h"

namespace grace::interop {
namespace {

constexpr const char* kLayers = "layer_list";

Result<Exported> write(const SlotMap& slots, const ExportOptions& options) {
  if (const std::int64_t seconds = second_copies(slots); seconds > 0)
    return invalid_input(
        fmt::format("ascend: {} slots repeat an expert of their device, which it does not allow: {} slots a "
                    "device of {} experts",
                    seconds, slots.slots_per_device(), slots.num_experts));
  if (options.mtp_layers > 0 && slots.slots_per_device() > slots.num_experts)
    return invalid_input("ascend: more slots a device than experts");
  Exported out;
  out.bytes = fmt::format("{{\"moe_layer_count\": {}, \"{}\": [", slots.expert_of_slot.size(), kLayers);
  for (std::size_t m = 0; m < slots.expert_of_slot.size(); ++m) {
    fmt::format_to(std::back_inserter(out.bytes),
                   "{}\n {{\"layer_id\": {}, \"device_count\": {}, \"device_list\": [", m == 0 ? "" : ",", m,
                   slots.num_devices);
    for (int d = 0; d < slots.num_devices; ++d)
      fmt::format_to(std::back_inserter(out.bytes), "{}\n  {{\"device_id\": {}, \"device_expert\": [{}]}}",
                     d == 0 ? "" : ",", d, fmt::join(slots.slots_of(m, DeviceId(d)), ", "));
    out.bytes += "]}";
  }
  out.bytes += "\n]}\n";
  out.start_with = {
      "--enable-expert-parallel",
      fmt::format("--data-parallel-size {}   (or any tensor x data parallel sizes whose product is {})",
                  slots.num_devices, slots.num_devices),
      fmt::format("--additional-config '{{\"eplb_config\": {{\"expert_map_path\": \"{}\"}}}}'",
                  options.file)};
  out.notes = {
      "vllm-ascend reads it by its own code (MRv1), which is to go in v0.25.1; the file's name must end in "
      ".json.",
      "Layers are numbered among MoE layers, dense ones not counted; the number of redundant experts follows "
      "from the file. A draft layer is not in it, and takes the default layout with the same redundancy.",
      "vllm-ascend fixes one copy of an expert for each rank, wherever it is: the plan's routing policy is "
      "not "
      "in the file."};
  return out;
}

Result<Row> read_layer(const Json& layer, std::size_t m, const std::string& place, std::size_t& devices) {
  GRACE_TRY(check_keys(layer, place, {"layer_id", "device_count", "device_list"}));
  const auto ordinal = static_cast<std::int64_t>(m);
  GRACE_TRY(get_int(layer, "layer_id", place, ordinal, ordinal));
  const std::int64_t count = GRACE_TRY(get_int(layer, "device_count", place, 1, kMaxDevices));
  const auto list = layer.find("device_list");
  if (list == layer.end() || !list->is_array() || std::cmp_not_equal(list->size(), count))
    return invalid_input(fmt::format("{}: device_list is no list of {} devices", place, count));
  if (m > 0 && std::cmp_not_equal(devices, count))
    return invalid_input(fmt::format("{}: {} devices, layer 0 has {}", place, count, devices));
  devices = list->size();
  Row row;
  std::size_t each = 0;
  for (std::size_t d = 0; d < devices; ++d) {
    const std::string here = fmt::format("{}: device_list[{}]", place, d);
    GRACE_TRY(check_keys((*list)[d], here, {"device_id", "device_expert"}));
    const auto id = static_cast<std::int64_t>(d);
    GRACE_TRY(get_int((*list)[d], "device_id", here, id, id));
    if (!(*list)[d].contains("device_expert"))
      return invalid_input(fmt::format("{}: device_expert is missing", here));
    const Row experts = GRACE_TRY(row_of_json((*list)[d]["device_expert"], here + ": device_expert"));
    if (d == 0) each = experts.size();
    if (experts.size() != each)
      return invalid_input(fmt::format("{}: {} experts, device 0 has {}", here, experts.size(), each));
    Row sorted = experts;
    std::ranges::sort(sorted);
    if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end())
      return invalid_input(fmt::format("{}: expert {} twice on one device", here, *twice));
    row.insert(row.end(), experts.begin(), experts.end());
  }
  return row;
}

Result<SlotMap> read(std::string_view bytes, std::string_view place, int /*num_devices*/) {
  const Json file = GRACE_TRY(parse_json(bytes, place));
  GRACE_TRY(check_keys(file, place, {"moe_layer_count", kLayers}));
  const std::int64_t layers = GRACE_TRY(get_int(file, "moe_layer_count", place, 1, kMaxDecoderLayer));
  const auto list = file.find(kLayers);
  if (list == file.end() || !list->is_array() || std::cmp_not_equal(list->size(), layers))
    return invalid_input(fmt::format("{}: {} is no list of {} layers", place, kLayers, layers));
  std::vector<Row> rows;
  std::size_t devices = 0;
  for (std::size_t m = 0; m < list->size(); ++m)
    rows.push_back(
        GRACE_TRY(read_layer((*list)[m], m, fmt::format("{}: {}[{}]", place, kLayers, m), devices)));
  return map_of_rows(std::move(rows), static_cast<int>(devices), place);
}

}  // namespace

const Exporter kAscend = {"ascend",
                          "JSON for vllm-ascend's expert_map_path",
                          ".json",
                          RowNumbers::kMoeOrdinals,
                          true,
                          "wrr",
                          [](std::string_view bytes) { return starts_as_object_with(bytes, kLayers); },
                          &write,
                          &read};

}  // namespace grace::interop
