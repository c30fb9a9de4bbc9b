// Fields of config.json that architectures share, in both of its spellings. `place` names the file in
// messages.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/result.h"
#include "grace/files/json.h"

namespace grace {

// Bounds no real model comes near; they keep products of sizes within 64 bits.
inline constexpr std::int64_t kMaxSize = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxLayers = 4096;
inline constexpr std::int64_t kMaxExperts = 32768;
inline constexpr std::int64_t kMaxPositions = std::int64_t{1} << 30;

// Whether the key is there and not null.
bool is_set(const Json& json, std::string_view key);

// In [1, highest], under the first of `keys` that is set. Errors: invalid_input; when none is set, naming the
// first.
Result<int> read_size(const Json& json, std::initializer_list<std::string_view> keys, std::string_view place,
                      std::int64_t highest);
// The same, or `otherwise` when no key is set.
Result<int> read_size_or(const Json& json, std::string_view key, std::string_view place, std::int64_t highest,
                         std::int64_t otherwise);
Result<bool> read_flag_or(const Json& json, std::string_view key, std::string_view place, bool otherwise);
// > 0, or `otherwise` when unset.
Result<double> read_positive_or(const Json& json, std::string_view key, std::string_view place,
                                double otherwise);
// Nothing when unset, else > 0.
Result<std::optional<double>> read_optional_positive(const Json& json, std::string_view key,
                                                     std::string_view place);

// At least 0, `otherwise` when unset.
Result<int> read_count_or(const Json& json, std::string_view key, std::string_view place, int otherwise);
// `eos_token_id`: a number, a list or null; distinct, in the file's order.
Result<std::vector<std::int32_t>> read_eos_token_ids(const Json& json, std::string_view place);
// Errors: unsupported when the key is set to anything but `value`, or to null, false or 0 when `value` is
// null.
Status expect_only(const Json& json, std::string_view key, std::string_view place, const Json& value);
// The same for several values, all strings, and the one that is set; `otherwise` when none is.
Result<std::string> read_one_of(const Json& json, std::string_view key, std::string_view place,
                                std::initializer_list<std::string_view> values, std::string_view otherwise);

// Decoder layers that are MoE by first_k_dense_replace (`first_dense` where unset), moe_layer_freq,
// decoder_sparse_step and mlp_only_layers, whichever are set. Errors: unsupported when none is.
Result<std::vector<int>> read_moe_layers(const Json& json, std::string_view place, int num_layers,
                                         int first_dense = 0);

}  // namespace grace
