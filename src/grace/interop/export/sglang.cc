// SGLang's --init-expert-location: one key, one row for each decoder layer, dense ones too.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>

#include "grace/files/json_file.h"
#include "grace/interop/export/engines.h"

namespace grace::interop {
namespace {

constexpr const char* kKey = "physical_to_logical_map";

Result<Exported> write(const SlotMap& slots, const ExportOptions& options) {
  const int least = slots.decoder_layers.back() + 1;
  if (options.num_decoder_layers != 0 && options.num_decoder_layers < least)
    return invalid_input(fmt::format("{} decoder layers, but the plan's last MoE layer is decoder layer {}",
                                     options.num_decoder_layers, least - 1));
  const int decoder_layers = options.num_decoder_layers != 0 ? options.num_decoder_layers : least;
  std::vector<Row> rows(static_cast<std::size_t>(decoder_layers + options.mtp_layers), default_row(slots));
  for (std::size_t m = 0; m < slots.expert_of_slot.size(); ++m)
    rows[static_cast<std::size_t>(slots.decoder_layers[m])] = slots.expert_of_slot[m];
  Exported out;
  out.bytes = fmt::format("{{\"{}\": [", kKey);
  for (std::size_t i = 0; i < rows.size(); ++i)
    fmt::format_to(std::back_inserter(out.bytes), "{}\n [{}]", i == 0 ? "" : ",", fmt::join(rows[i], ", "));
  out.bytes += "\n]}\n";
  const int redundant = slots.num_slots() - slots.num_experts;
  out.start_with = {fmt::format("--init-expert-location {}", options.file),
                    fmt::format("--ep-num-redundant-experts {}", redundant),
                    fmt::format("--tp-size {} --ep-size {}", slots.num_devices, slots.num_devices),
                    "--moe-a2a-backend deepep", "--ep-dispatch-algorithm static"};
  out.notes = {
      fmt::format(
          "One row for each of {} decoder layers; those without experts, and any that the plan lacks, "
          "are in default order.",
          rows.size()),
      "SGLang chooses among copies itself: with static dispatch a token takes the copy on its own GPU, else "
      "one on its node, else one that is drawn once for each GPU. The plan's routing policy and its weights "
      "are not in the file.",
      "Without an all-to-all backend (--moe-a2a-backend none) it takes --ep-dispatch-algorithm dynamic "
      "alone, which spreads a token's choices over copies without regard to where they are.",
      "With --enable-eplb SGLang would replace this placement by its own after "
      "--eplb-rebalance-num-iterations passes."};
  if (options.num_decoder_layers == 0)
    out.notes.push_back(
        "The number of decoder layers is not known and taken to end with the last MoE layer; where the model "
        "has more, name them.");
  return out;
}

Result<SlotMap> read(std::string_view bytes, std::string_view place, int num_devices) {
  const Json file = GRACE_TRY(parse_json(bytes, place));
  GRACE_TRY(check_keys(file, place, {kKey}));
  const auto list = file.find(kKey);
  if (list == file.end()) return invalid_input(fmt::format("{}: {} is missing", place, kKey));
  if (!list->is_array())
    return invalid_input(fmt::format("{}: {} is {}, not a list", place, kKey, shown(*list)));
  std::vector<Row> rows;
  for (std::size_t i = 0; i < list->size(); ++i)
    rows.push_back(GRACE_TRY(row_of_json((*list)[i], fmt::format("{}: {}[{}]", place, kKey, i))));
  return map_of_rows(std::move(rows), num_devices, place);
}

}  // namespace

const Exporter kSglang = {"sglang",
                          "JSON for --init-expert-location",
                          ".json",
                          RowNumbers::kEveryDecoderLayer,
                          false,
                          "tar",
                          [](std::string_view bytes) { return starts_as_object_with(bytes, kKey); },
                          &write,
                          &read};

}  // namespace grace::interop
