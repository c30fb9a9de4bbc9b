// vLLM on Ascend: loads as a tensor, of experts or of the slots of an expert map. docs/formats/ascend.md.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "grace/files/mapped_file.h"
#include "grace/files/torch_file.h"
#include "grace/interop/exporter.h"
#include "grace/interop/import/common.h"

namespace grace {
namespace {

struct Loads {
  std::vector<std::int64_t> shape, values;
};
Result<Loads> read_tensor(const std::filesystem::path& path, RecordingSink& sink) {
  const std::string place = path.string();
  const MappedFile file = GRACE_TRY(MappedFile::open(path));
  const TorchFile torch = GRACE_TRY(TorchFile::parse(file.bytes(), place));
  const StridedTensor tensor = GRACE_TRY(torch.tensor(torch.root(), place));
  std::int64_t rounded = 0;
  Loads loads;
  loads.values = GRACE_TRY(counts_of(row_major_bytes(tensor), tensor.dtype, place, rounded));
  loads.shape = tensor.shape;
  warn_of_rounding(rounded, place, sink);
  GRACE_TRY(sink.read_bytes(std::ssize(file.bytes())));
  return loads;
}

bool is_map(const std::filesystem::path& path) { return path.extension() == ".json"; }

// [layers, ranks, local slots] through the map.
Result<std::vector<std::vector<std::int64_t>>> through_map(const Loads& loads,
                                                           const std::filesystem::path& path,
                                                           std::string_view place) {
  PlacementOptions options;
  options.format = "ascend";
  const SlotMap map = GRACE_TRY(read_placement(path, options));
  const std::int64_t layers = loads.shape[0], slots = loads.shape[1] * loads.shape[2];
  if (std::cmp_not_equal(layers, map.expert_of_slot.size()) || slots != map.num_slots() ||
      loads.shape[1] != map.num_devices)
    return invalid_input(fmt::format("{}: [{}, {}, {}], but {} has {} layers, {} devices and {} slots", place,
                                     layers, loads.shape[1], loads.shape[2], path.string(),
                                     map.expert_of_slot.size(), map.num_devices, map.num_slots()));
  std::vector<std::vector<std::int64_t>> sums;
  for (std::size_t l = 0; l < map.expert_of_slot.size(); ++l) {
    const std::vector<std::int64_t> owners(map.expert_of_slot[l].begin(), map.expert_of_slot[l].end());
    sums.emplace_back(static_cast<std::size_t>(map.num_experts), 0);
    const auto row =
        std::span(loads.values).subspan(l * static_cast<std::size_t>(slots), static_cast<std::size_t>(slots));
    GRACE_TRY(add_physical(row, owners, sums.back(), place));
  }
  return sums;
}

bool recognises(std::span<const std::filesystem::path> files) {
  bool any = false;
  for (const std::filesystem::path& path : files) {
    if (is_map(path) && first_bytes(path, 4096).find("\"moe_layer_count\"") != std::string::npos) continue;
    const std::string head = first_bytes(path, 4096);
    const bool is_bare = head.starts_with("PK") && head.find("_rebuild_tensor_v2") != std::string::npos &&
                         head.find("logical_count") == std::string::npos &&
                         head.find("records") == std::string::npos;
    if (!is_bare) return false;
    any = true;
  }
  return any;
}

Status read(std::span<const std::filesystem::path> files, const ImportOptions& options, RecordingSink& sink) {
  std::vector<std::filesystem::path> maps, tensors;
  for (const std::filesystem::path& path : files) (is_map(path) ? maps : tensors).push_back(path);
  if (maps.size() > 1) return invalid_input(fmt::format("{}: a second expert map", maps[1].string()));
  std::vector<std::vector<std::int64_t>> sums;
  for (const std::filesystem::path& path : tensors) {
    const Loads loads = GRACE_TRY(read_tensor(path, sink));
    const bool of_slots = loads.shape.size() == 3;
    if ((loads.shape.size() != 2 && !of_slots) || loads.values.empty())
      return invalid_input(
          fmt::format("{}: {} dimensions, must be [layers, experts] or [layers, ranks, slots]", path.string(),
                      loads.shape.size()));
    if (of_slots && maps.empty())
      return invalid_input(fmt::format(
          "{}: loads of slots: give the expert map (.json) that was in force along with it", path.string()));
    const auto part = of_slots
                          ? GRACE_TRY(through_map(loads, maps[0], path.string()))
                          : GRACE_TRY(sum_steps(loads.values, static_cast<std::size_t>(loads.shape[0]),
                                                static_cast<std::size_t>(loads.shape[1]), path.string()));
    if (sums.empty()) sums.assign(part.size(), std::vector<std::int64_t>(part[0].size(), 0));
    if (sums.size() != part.size() || sums[0].size() != part[0].size())
      return invalid_input(fmt::format("{}: {} layers of {} experts, another file has {} of {}",
                                       path.string(), part.size(), part[0].size(), sums.size(),
                                       sums[0].size()));
    for (std::size_t l = 0; l < part.size(); ++l)
      for (std::size_t e = 0; e < part[l].size(); ++e) sums[l][e] += part[l][e];
  }
  if (sums.empty()) return invalid_input(fmt::format("{}: an expert map, and no loads", files[0].string()));
  LoadProfile profile;
  profile.num_experts = static_cast<int>(sums[0].size());
  profile.decoder_layers = GRACE_TRY(decoder_layers_of(sums.size(), options, "vLLM on Ascend", sink));
  profile.loads = std::move(sums);
  return sink.set_loads(std::move(profile));
}

}  // namespace

Importer ascend_importer() {
  return {"ascend",
          "loads saved by torch: [layers, experts], or [layers, ranks, slots] with the expert map beside it",
          recognises, read};
}

}  // namespace grace
