// Qwen3-MoE (Qwen team, 2025): q and k are normalised head by head, and heads have a size of their own.
#include "grace/files/json_file.h"
#include "grace/model/architecture.h"
#include "grace/model/config_fields.h"
#include "grace/model/config_parts.h"

namespace grace {
namespace {

Result<ModelConfig> read_config(const Json& json, std::string_view place) {
  ModelConfig config;
  config.architecture = kQwen3Moe.name;
  GRACE_TRY(read_model(json, place, {.max_positions = 32768}, config));
  GRACE_TRY(read_grouped_attention(json, place, config));
  config.qk_norm = QkNorm::kPerHead;
  config.qkv_bias = config.output_bias = GRACE_TRY(read_flag_or(json, "attention_bias", place, false));
  GRACE_TRY(expect_only(json, "use_sliding_window", place, nullptr));
  GRACE_TRY(read_common_rope(json, place, 10000, config));
  GRACE_TRY(read_experts(json, place, "moe_intermediate_size", config));
  return config;
}

}  // namespace

const Architecture kQwen3Moe = {
    .name = "Qwen3MoeForCausalLM", .model_type = "qwen3_moe", .read_config = read_config};

}  // namespace grace
