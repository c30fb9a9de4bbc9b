// What several importers need.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/result.h"
#include "grace/files/safetensors.h"
#include "grace/interop/importer.h"

namespace grace {

// One per format, for the table of importers().
Importer sglang_importer();
Importer vllm_importer();
Importer tensorrt_llm_importer();
Importer megatron_importer();
Importer llama_imatrix_importer();
Importer ascend_importer();
Importer eplb_importer();
Importer csv_importer();
Importer olmoe_importer();
Importer grace_importer();

// The decoder layers of `count` MoE layers that a source numbers from 0, without the dense ones: as the
// options say, else from dense_layers on; where they say neither, with a warning. Errors: invalid_input where
// the options list another number of layers.
Result<std::vector<int>> decoder_layers_of(std::size_t count, const ImportOptions& options,
                                           std::string_view place, RecordingSink& sink);
// The rows of a source that has one for every decoder layer, dense ones too: those the options say, else
// those in which something was recorded. is_empty: [rows]. Errors: invalid_input where the options name a row
// that is not there, or nothing was recorded at all.
Result<std::vector<int>> moe_rows(const std::vector<bool>& is_empty, const ImportOptions& options,
                                  std::string_view place, RecordingSink& sink);

// Row-major elements as whole numbers, halves to even; `rounded` counts those that were none. Errors:
// invalid_input for NaN, infinite, negative and those over 2^46.
Result<std::vector<std::int64_t>> counts_of(std::span<const std::byte> elements, Dtype dtype,
                                            std::string_view place, std::int64_t& rounded);
// Row-major elements as ids: whole numbers, those that do not fit into 32 bits become the nearest that does.
// Errors: invalid_input for other dtypes.
Status ids_of(std::span<const std::byte> elements, Dtype dtype, std::string_view place,
              std::vector<std::int32_t>& out);

// counts: [steps, L, E], row-major, summed over the steps. Errors: invalid_input where a sum overflows.
Result<std::vector<std::vector<std::int64_t>>> sum_steps(std::span<const std::int64_t> counts,
                                                         std::size_t layers, std::size_t experts,
                                                         std::string_view place);
// Loads of physical experts -> of logical ones. map: [P] for each layer. Errors: invalid_input for a length
// or an id that does not fit.
Status add_physical(std::span<const std::int64_t> physical, std::span<const std::int64_t> map,
                    std::vector<std::int64_t>& logical, std::string_view place);
void warn_of_rounding(std::int64_t rounded, std::string_view place, RecordingSink& sink);

// The number in a name such as rank12.safetensors, between the two; nothing for another name.
std::optional<int> rank_in_name(const std::filesystem::path& path, std::string_view before,
                                std::string_view after);

}  // namespace grace
