// Inside the exporters: one .cc per engine, and what they share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "grace/files/json.h"
#include "grace/interop/exporter.h"

namespace grace::interop {

extern const Exporter kSglang;
extern const Exporter kVllm;
extern const Exporter kVllmRanks;
extern const Exporter kTensorRtLlm;
extern const Exporter kAscend;
extern const Exporter kEplb;
extern const Exporter kPlacementArray;

using Row = std::vector<std::int32_t>;

// Experts in ascending order, again and again: how engines fill what nothing is known of.
Row default_row(const SlotMap& slots);
// The rows of the MoE layers, and default rows for the MTP layers.
std::vector<Row> rows_with_mtp(const SlotMap& slots, const ExportOptions& options);
// The map of these rows, numbered from 0 unless decoder_layers are given; E is the largest id + 1. Errors:
// invalid_input where num_devices is 0, and with the first violation.
Result<SlotMap> map_of_rows(std::vector<Row> rows, int num_devices, std::string_view place,
                            std::vector<int> decoder_layers = {});
// A list of ids in [0, kMaxExperts). Errors: invalid_input.
Result<Row> row_of_json(const Json& list, const std::string& place);
// Errors: invalid_input for a key that is none of these, and where the file is no object.
Status check_keys(const Json& object, std::string_view place, std::initializer_list<std::string_view> keys);
// Whether the text is a JSON object that has this key within its first bytes.
bool starts_as_object_with(std::string_view bytes, std::string_view key);

}  // namespace grace::interop
