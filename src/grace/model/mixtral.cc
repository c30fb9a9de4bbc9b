// Mixtral (Jiang et al., 2024): a token's weights always sum to 1, and experts go by other names.
#include "grace/files/json_file.h"
#include "grace/model/architecture.h"
#include "grace/model/config_fields.h"
#include "grace/model/config_parts.h"

namespace grace {
namespace {

Result<ModelConfig> read_config(const Json& json, std::string_view place) {
  ModelConfig config;
  config.architecture = kMixtral.name;
  GRACE_TRY(read_model(json, place, {.rms_norm_eps = 1e-5, .max_positions = 131072}, config));
  GRACE_TRY(read_grouped_attention(json, place, config));
  GRACE_TRY(expect_only(json, "attention_bias", place, nullptr));
  config.window = GRACE_TRY(read_count_or(json, "sliding_window", place, 0));
  GRACE_TRY(read_common_rope(json, place, 1e6, config));
  GRACE_TRY(read_experts(json, place, "intermediate_size", config));
  config.norm_topk_prob = true;
  return config;
}

}  // namespace

const Architecture kMixtral = {
    .name = "MixtralForCausalLM",
    .model_type = "mixtral",
    .read_config = read_config,
    .names =
        {
            .router = "model.layers.{layer}.block_sparse_moe.gate.weight",
            .router_alias = "model.layers.{layer}.mlp.gate.weight",  // beside fused experts
            .gate = "model.layers.{layer}.block_sparse_moe.experts.{expert}.w1.weight",
            .up = "model.layers.{layer}.block_sparse_moe.experts.{expert}.w3.weight",
            .down = "model.layers.{layer}.block_sparse_moe.experts.{expert}.w2.weight",
        },
};

}  // namespace grace
