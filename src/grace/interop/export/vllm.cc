// vLLM: the mapping record of pull request 41141, and the rank of each expert of pull request 34811. 0.33.0
// reads neither; docs/from-vllm.md has a plugin that does.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "grace/base/limits.h"
#include "grace/files/json_file.h"
#include "grace/interop/export/engines.h"

namespace grace::interop {
namespace {

constexpr const char* kRecord = "eplb_initial_mapping";
constexpr const char* kRows = "initial_global_assignments";
constexpr const char* kRanks = "expert_to_ep_rank";

std::vector<std::string> parallel_flags(const SlotMap& slots) {
  return {"--enable-expert-parallel",
          fmt::format("--data-parallel-size {}   (or any tensor x data parallel sizes whose product is {})",
                      slots.num_devices, slots.num_devices)};
}

Result<Exported> write(const SlotMap& slots, const ExportOptions& options) {
  const std::vector<Row> rows = rows_with_mtp(slots, options);
  const int redundant = slots.num_slots() - slots.num_experts;
  Exported out;
  out.bytes = fmt::format(
      "{{\"record_type\": \"{}\", \"version\": 1, \"num_redundant_experts\": {}, \"num_slots\": {}, \"{}\": "
      "{{",
      kRecord, redundant, slots.num_slots(), kRows);
  for (std::size_t i = 0; i < rows.size(); ++i)
    fmt::format_to(std::back_inserter(out.bytes), "{}\"{}\": [{}]", i == 0 ? "" : ", ", i,
                   fmt::join(rows[i], ", "));
  out.bytes += "}}\n";
  out.start_with = parallel_flags(slots);
  out.start_with.push_back("--enable-eplb");
  out.start_with.push_back(
      fmt::format("--eplb-config '{{\"num_redundant_experts\": {}, \"initial_mapping_path\": \"{}\", "
                  "\"disable_online_rebalancing\": true}}'",
                  redundant, options.file));
  out.notes = {
      "vLLM as released (0.33.0) reads no placement: this file needs pull request 41141 "
      "(github.com/vllm-project/vllm/pull/41141), which adds initial_mapping_path to the EPLB configuration; "
      "or "
      "the plugin of docs/from-vllm.md, and then --eplb-config without initial_mapping_path and "
      "disable_online_rebalancing.",
      "Layers are numbered among MoE layers, dense ones not counted.",
      "vLLM chooses among copies by a token's position modulo the number of copies, wherever they are: of "
      "the "
      "plan's locality only what single copies give is kept, and its routing policy is not in the file.",
      "Without disable_online_rebalancing, or the plugin, vLLM would replace this placement by its own."};
  return out;
}

Result<SlotMap> read_record(const Json& record, std::string_view place, int num_devices) {
  GRACE_TRY(
      check_keys(record, place, {"record_type", "version", "num_redundant_experts", "num_slots", kRows}));
  if (const std::string type = GRACE_TRY(get_string(record, "record_type", place)); type != kRecord)
    return invalid_input(
        fmt::format("{}: record_type is {}, must be \"{}\"", place, shown(Json(type)), kRecord));
  GRACE_TRY(get_int(record, "version", place, 1, 1));
  constexpr std::int64_t kMostSlots = std::int64_t{kMaxExperts} * kMaxDevices;
  const std::int64_t slots = GRACE_TRY(get_int(record, "num_slots", place, 1, kMostSlots));
  const std::int64_t redundant = GRACE_TRY(get_int(record, "num_redundant_experts", place, 0, slots - 1));
  const auto found = record.find(kRows);
  if (found == record.end() || !found->is_object())
    return invalid_input(fmt::format("{}: {} is no object", place, kRows));
  std::vector<Row> rows;
  for (std::size_t i = 0; i < found->size(); ++i) {
    const auto row = found->find(std::to_string(i));
    if (row == found->end())
      return invalid_input(
          fmt::format("{}: {} has {} layers, but not \"{}\"", place, kRows, found->size(), i));
    rows.push_back(GRACE_TRY(row_of_json(*row, fmt::format("{}: {}: layer {}", place, kRows, i))));
    if (std::cmp_not_equal(rows.back().size(), slots))
      return invalid_input(fmt::format("{}: {}: layer {} has {} slots, num_slots is {}", place, kRows, i,
                                       rows.back().size(), slots));
  }
  SlotMap map = GRACE_TRY(map_of_rows(std::move(rows), num_devices, place));
  if (map.num_experts != slots - redundant)
    return invalid_input(fmt::format("{}: num_redundant_experts is {}, must be {}: {} slots of {} experts",
                                     place, redundant, slots - map.num_experts, slots, map.num_experts));
  return map;
}

Result<SlotMap> read(std::string_view bytes, std::string_view place, int num_devices) {
  int line_number = 0;
  Json record;
  std::string record_place;
  for (std::size_t begin = 0; begin < bytes.size();) {
    const std::size_t end = std::min(bytes.find('\n', begin), bytes.size());
    const std::string_view line = bytes.substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string here = fmt::format("{}:{}", place, line_number);
    if (!record.is_null()) return invalid_input(fmt::format("{}: a second record; there must be one", here));
    record_place = here;
    record = GRACE_TRY(parse_json(line, here));
  }
  if (record.is_null()) return invalid_input(fmt::format("{}: holds no record", place));
  return read_record(record, record_place, num_devices);
}

bool recognises(std::string_view bytes) {
  return starts_as_object_with(bytes, "record_type") &&
         bytes.substr(0, 4096).find(fmt::format("\"{}\"", kRecord)) != std::string_view::npos;
}

Result<Exported> write_ranks(const SlotMap& slots, const ExportOptions& options) {
  if (slots.num_slots() != slots.num_experts)
    return invalid_input(fmt::format("vllm-ranks: {} slots of {} experts; it holds one copy of each",
                                     slots.num_slots(), slots.num_experts));
  std::vector<int> rank_of(static_cast<std::size_t>(slots.num_experts));
  for (std::size_t m = 0; m < slots.expert_of_slot.size(); ++m)
    for (int d = 0; d < slots.num_devices; ++d)
      for (const std::int32_t e : slots.slots_of(m, DeviceId(d))) {
        int& rank = rank_of[static_cast<std::size_t>(e)];
        if (m > 0 && rank != d)
          return invalid_input(
              fmt::format("vllm-ranks: expert {} is on device {} in layer 0 and on {} in layer {}; the file "
                          "has one rank for all layers",
                          e, rank, d, m));
        rank = d;
      }
  Exported out;
  out.bytes = fmt::format("{{\"{}\": [{}]}}\n", kRanks, fmt::join(rank_of, ", "));
  out.start_with = parallel_flags(slots);
  out.start_with.push_back(fmt::format("--expert-placement-file {}", options.file));
  out.notes = {
      "vLLM as released (0.33.0) reads no placement: this file needs pull request 34811 "
      "(github.com/vllm-project/vllm/pull/34811), and excludes --enable-eplb.",
      "One rank for each expert, the same in all layers."};
  return out;
}

Result<SlotMap> read_ranks(std::string_view bytes, std::string_view place, int num_devices) {
  const Json file = GRACE_TRY(parse_json(bytes, place));
  GRACE_TRY(check_keys(file, place, {kRanks}));
  const auto list = file.find(kRanks);
  if (list == file.end()) return invalid_input(fmt::format("{}: {} is missing", place, kRanks));
  const Row rank_of = GRACE_TRY(row_of_json(*list, fmt::format("{}: {}", place, kRanks)));
  int ranks = num_devices;
  for (std::size_t e = 0; e < rank_of.size(); ++e) {
    if (rank_of[e] >= (num_devices == 0 ? kMaxDevices : num_devices))
      return invalid_input(fmt::format("{}: {}[{}] is {}, outside [0, {})", place, kRanks, e, rank_of[e],
                                       num_devices == 0 ? kMaxDevices : num_devices));
    ranks = std::max(ranks, rank_of[e] + 1);
  }
  std::vector<Row> experts_of_rank(static_cast<std::size_t>(ranks));
  std::size_t most = 0;
  for (std::size_t e = 0; e < rank_of.size(); ++e) {
    Row& experts = experts_of_rank[static_cast<std::size_t>(rank_of[e])];
    experts.push_back(static_cast<std::int32_t>(e));
    most = std::max(most, experts.size());
  }
  // A short file may ask for a fullest rank and a thousand others as wide.
  constexpr std::size_t kMostSlots = std::size_t{1} << 22;
  if (most * experts_of_rank.size() > kMostSlots)
    return invalid_input(fmt::format("{}: {} experts on one of {} ranks; {} slots are more than {}", place,
                                     most, ranks, most * experts_of_rank.size(), kMostSlots));
  Row row;
  for (Row& experts : experts_of_rank) {
    experts.resize(most, kEmptySlot);
    row.insert(row.end(), experts.begin(), experts.end());
  }
  return map_of_rows({std::move(row)}, ranks, place);
}

}  // namespace

const Exporter kVllm = {"vllm",      "the JSON-lines mapping record of pull request 41141",
                        "",          RowNumbers::kMoeOrdinals,
                        false,       "wrr",
                        &recognises, &write,
                        &read};
const Exporter kVllmRanks = {"vllm-ranks",
                             "one rank for each expert (pull request 34811), for plans without copies",
                             "",
                             RowNumbers::kOneForAll,
                             true,
                             "primary",
                             [](std::string_view bytes) { return starts_as_object_with(bytes, kRanks); },
                             &write_ranks,
                             &read_ranks};

}  // namespace grace::interop
