// OLMoE (Muennighoff et al., 2024): every layer is MoE, q and k are normalised over the whole projection.
#include <fmt/format.h>

#include "grace/files/json_file.h"
#include "grace/model/architecture.h"
#include "grace/model/config_fields.h"
#include "grace/model/config_parts.h"

namespace grace {
namespace {

Result<ModelConfig> read_config(const Json& json, std::string_view place) {
  ModelConfig config;
  config.architecture = kOlmoe.name;
  GRACE_TRY(read_model(json, place, {.rms_norm_eps = 1e-5}, config));
  GRACE_TRY(read_grouped_attention(json, place, config));
  // The norms of q and k span the whole projection, which ties head_dim to hidden_size.
  if (config.head_dim * config.num_heads != config.hidden_size) {
    return invalid_input(fmt::format("{}: head_dim is {}, not hidden_size / num_attention_heads = {}", place,
                                     config.head_dim, config.hidden_size / config.num_heads));
  }
  config.qk_norm = QkNorm::kWhole;
  GRACE_TRY(expect_only(json, "attention_bias", place, nullptr));
  GRACE_TRY(expect_only(json, "sliding_window", place, nullptr));
  config.clip_qkv = GRACE_TRY(read_optional_positive(json, "clip_qkv", place));
  GRACE_TRY(read_common_rope(json, place, 10000, config));
  GRACE_TRY(read_experts(json, place, "intermediate_size", config));
  return config;
}

}  // namespace

const Architecture kOlmoe = {.name = "OlmoeForCausalLM", .model_type = "olmoe", .read_config = read_config};

}  // namespace grace
