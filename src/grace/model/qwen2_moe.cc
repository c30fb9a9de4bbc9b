// Qwen2-MoE (Qwen team, 2024): biases of q, k and v, and a shared expert that each token switches.
#include "grace/files/json_file.h"
#include "grace/model/architecture.h"
#include "grace/model/config_fields.h"
#include "grace/model/config_parts.h"

namespace grace {
namespace {

Result<ModelConfig> read_config(const Json& json, std::string_view place) {
  ModelConfig config;
  config.architecture = kQwen2Moe.name;
  GRACE_TRY(read_model(json, place, {.max_positions = 32768}, config));
  GRACE_TRY(read_grouped_attention(json, place, config));
  // The published files have the biases and no key that says so.
  config.qkv_bias = GRACE_TRY(read_flag_or(json, "qkv_bias", place, true));
  GRACE_TRY(expect_only(json, "use_sliding_window", place, nullptr));
  GRACE_TRY(read_common_rope(json, place, 10000, config));
  GRACE_TRY(read_experts(json, place, "moe_intermediate_size", config));
  config.shared_ffn_size = GRACE_TRY(read_size(json, {"shared_expert_intermediate_size"}, place, kMaxSize));
  config.shared_switched = true;
  return config;
}

}  // namespace

const Architecture kQwen2Moe = {
    .name = "Qwen2MoeForCausalLM",
    .model_type = "qwen2_moe",
    .read_config = read_config,
    .names =
        {
            .shared_gate = "model.layers.{layer}.mlp.shared_expert.gate_proj.weight",
            .shared_up = "model.layers.{layer}.mlp.shared_expert.up_proj.weight",
            .shared_down = "model.layers.{layer}.mlp.shared_expert.down_proj.weight",
        },
};

}  // namespace grace
