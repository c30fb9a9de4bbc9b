// The table of exporters, how a file finds its own, and what they share.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "grace/base/limits.h"
#include "grace/files/json_file.h"
#include "grace/files/mapped_file.h"
#include "grace/interop/export/engines.h"

namespace grace {
namespace {

std::string names_of(std::span<const Exporter> all, bool that_write = false) {
  std::vector<std::string_view> names;
  for (const Exporter& one : all)
    if (one.write != nullptr || !that_write) names.push_back(one.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

// Gives the rows their numbers, and takes those that are asked for.
Result<SlotMap> numbered(SlotMap map, RowNumbers rows, const PlacementOptions& options,
                         std::string_view place) {
  const std::vector<int>& wanted = options.decoder_layers;
  if (wanted.empty()) return map;
  if (rows == RowNumbers::kOneForAll) {
    map.decoder_layers = wanted;
    map.expert_of_slot.resize(wanted.size(), map.expert_of_slot.front());
    return map;
  }
  if (rows == RowNumbers::kMoeOrdinals) {
    const std::size_t has = map.decoder_layers.size();
    if (has != wanted.size() && has != wanted.size() + static_cast<std::size_t>(options.mtp_layers))
      return invalid_input(fmt::format("{}: {} MoE layers, the model has {}", place, has, wanted.size()));
    map.decoder_layers = wanted;
    map.expert_of_slot.resize(wanted.size());
    return map;
  }
  SlotMap chosen{map.num_experts, map.num_devices, wanted, {}};
  for (const int layer : wanted) {
    const auto found = std::ranges::find(map.decoder_layers, layer);
    if (found == map.decoder_layers.end())
      return invalid_input(
          fmt::format("{}: has no row for decoder layer {}, which the model has", place, layer));
    chosen.expert_of_slot.push_back(
        std::move(map.expert_of_slot[static_cast<std::size_t>(found - map.decoder_layers.begin())]));
  }
  return chosen;
}

}  // namespace

std::span<const Exporter> exporters() {
  static const std::array kAll = {interop::kSglang,        interop::kVllm,   interop::kVllmRanks,
                                  interop::kTensorRtLlm,   interop::kAscend, interop::kEplb,
                                  interop::kPlacementArray};
  return kAll;
}

Result<const Exporter*> find_exporter(std::string_view name, bool to_write) {
  const auto all = exporters();
  const auto found = std::ranges::find(all, name, &Exporter::name);
  if (found == all.end())
    return invalid_input(fmt::format("format: '{}' is not one of {}", name, names_of(all, to_write)));
  if (to_write && found->write == nullptr)
    return invalid_input(
        fmt::format("format: {} is only read, not written; one of {}", name, names_of(all, true)));
  return &*found;
}

Result<const Exporter*> exporter_of(std::string_view bytes, std::string_view format) {
  if (!format.empty()) return find_exporter(format);
  for (const Exporter& one : exporters())
    if (one.recognises(bytes)) return &one;
  return nullptr;
}

Result<SlotMap> parse_placement(std::string_view bytes, std::string_view place,
                                const PlacementOptions& options) {
  const Exporter* format = GRACE_TRY(exporter_of(bytes, options.format));
  if (format == nullptr)
    return invalid_input(fmt::format("{}: no placement of {}", place, names_of(exporters())));
  SlotMap map = GRACE_TRY(format->read(bytes, place, options.num_devices));
  if (options.num_experts != 0 && map.num_experts != options.num_experts)
    return invalid_input(
        fmt::format("{}: {} experts, must be {}", place, map.num_experts, options.num_experts));
  if (options.num_devices != 0 && map.num_devices != options.num_devices)
    return invalid_input(
        fmt::format("{}: {} devices, must be {}", place, map.num_devices, options.num_devices));
  return numbered(std::move(map), format->rows, options, place);
}

Result<SlotMap> read_placement(const std::filesystem::path& path, const PlacementOptions& options) {
  const MappedFile file = GRACE_TRY(MappedFile::open(path));
  const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  return parse_placement(bytes, path.string(), options);
}

Result<ExportedPlan> export_plan(const Plan& plan, const ExportRequest& request) {
  const Exporter* exporter = GRACE_TRY(find_exporter(request.to, true));
  const std::string out = request.out.string();
  if (!out.ends_with(exporter->extension))
    return invalid_input(
        fmt::format("{}: must end in {}, which {} insists on", out, exporter->extension, request.to));
  if (plan.is_lossy())
    return invalid_input(
        fmt::format("plan of {}: its gate is held to partners, which no other engine's gate knows: without "
                    "them the placement "
                    "is for tokens that never come",
                    plan.strategy));
  for (const auto& [name, value] : {std::pair{"slots per device", request.slots_per_device},
                                    {"decoder layers", request.options.num_decoder_layers},
                                    {"MTP layers", request.options.mtp_layers}})
    if (value < 0 || value > 1'000'000)
      return invalid_input(fmt::format("{}: {} is outside [0, 1000000]", name, value));
  ExportedPlan exported;
  exported.even = GRACE_TRY(even_out(plan, request.loads, request.slots_per_device, request.before));
  ExportOptions options = request.options;
  options.file = out;
  exported.file = GRACE_TRY(exporter->write(exported.even.slots, options));
  GRACE_TRY(write_text_atomically(request.out, exported.file.bytes));
  return exported;
}

bool is_placement(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  const Result<MappedFile> file = MappedFile::open(path);
  if (!file.ok()) return false;
  const auto bytes = file.value().bytes();
  const auto found = exporter_of({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "");
  return found.ok() && found.value() != nullptr;
}

Result<ImportedPlan> import_placement(const std::filesystem::path& path, const PlacementOptions& options,
                                      std::string model, std::vector<int> devices_per_node) {
  const MappedFile file = GRACE_TRY(MappedFile::open(path));
  const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  const SlotMap map = GRACE_TRY(parse_placement(bytes, path.string(), options));
  const Exporter* format = GRACE_TRY(exporter_of(bytes, options.format));
  if (devices_per_node.empty()) devices_per_node = {map.num_devices};
  ImportedPlan imported;
  imported.format = format->name;
  imported.plan = plan_of(map, std::move(model), std::move(devices_per_node), &imported.second_copies);
  imported.plan.provenance = {{"format", imported.format},
                              {"source", path.filename().string()},
                              {"second_copies_left_out", fmt::format("{}", imported.second_copies)}};
  return imported;
}

namespace interop {

Row default_row(const SlotMap& slots) {
  Row row(static_cast<std::size_t>(slots.num_slots()));
  for (std::size_t p = 0; p < row.size(); ++p)
    row[p] = static_cast<std::int32_t>(p % static_cast<std::size_t>(slots.num_experts));
  return row;
}

std::vector<Row> rows_with_mtp(const SlotMap& slots, const ExportOptions& options) {
  std::vector<Row> rows = slots.expert_of_slot;
  rows.resize(rows.size() + static_cast<std::size_t>(options.mtp_layers), default_row(slots));
  return rows;
}

Result<SlotMap> map_of_rows(std::vector<Row> rows, int num_devices, std::string_view place,
                            std::vector<int> decoder_layers) {
  if (num_devices == 0)
    return invalid_input(fmt::format("{}: does not say for how many devices it is; name the cluster", place));
  SlotMap map;
  map.num_devices = num_devices;
  for (const Row& row : rows)
    for (const std::int32_t e : row) map.num_experts = std::max(map.num_experts, e + 1);
  map.expert_of_slot = std::move(rows);
  map.decoder_layers = std::move(decoder_layers);
  if (map.decoder_layers.empty()) {
    map.decoder_layers.resize(map.expert_of_slot.size());
    std::iota(map.decoder_layers.begin(), map.decoder_layers.end(), 0);
  }
  if (const std::vector<std::string> found = violations(map); !found.empty())
    return invalid_input(fmt::format("{}: {}", place, found.front()));
  return map;
}

Result<Row> row_of_json(const Json& list, const std::string& place) {
  if (!list.is_array()) return invalid_input(fmt::format("{} is {}, not a list", place, shown(list)));
  Row row;
  row.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const bool fits = list[i].is_number_unsigned() && list[i].get<std::uint64_t>() < kMaxExperts;
    if (!fits)
      return invalid_input(
          fmt::format("{}[{}] is {}, not an expert in [0, {})", place, i, shown(list[i]), kMaxExperts));
    row.push_back(list[i].get<std::int32_t>());
  }
  return row;
}

Status check_keys(const Json& object, std::string_view place, std::initializer_list<std::string_view> keys) {
  if (!object.is_object()) return invalid_input(fmt::format("{}: {} is not an object", place, shown(object)));
  for (const auto& [key, value] : object.items())
    if (std::ranges::find(keys, std::string_view(key)) == keys.end())
      return invalid_input(fmt::format("{}: key {} is not one of {}; the engine refuses it", place,
                                       shown(Json(key)), fmt::join(keys, ", ")));
  return {};
}

bool starts_as_object_with(std::string_view bytes, std::string_view key) {
  constexpr std::size_t kEnough = 4096;
  const std::size_t brace = bytes.find_first_not_of(" \t\r\n");
  if (brace == std::string_view::npos || bytes[brace] != '{') return false;
  return bytes.substr(brace, kEnough).find(fmt::format("\"{}\"", key)) != std::string_view::npos;
}

}  // namespace interop
}  // namespace grace
