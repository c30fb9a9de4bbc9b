// DeepSeek-V2 and V2-Lite (DeepSeek-AI, 2024): latent attention, shared experts, dense first layers, a
// softmax gate whose groups may be limited. Where transformers differs from DeepSeek's own code, this follows
// the latter.
#include "grace/files/json_file.h"
#include "grace/model/architecture.h"
#include "grace/model/config_fields.h"
#include "grace/model/config_parts.h"

namespace grace {
namespace {

Result<ModelConfig> read_config(const Json& json, std::string_view place) {
  ModelConfig config;
  config.architecture = kDeepseekV2.name;
  GRACE_TRY(read_model(json, place, {.max_positions = 2048}, config));
  GRACE_TRY(read_latent_attention(json, place, config));
  GRACE_TRY(read_deepseek_rope(json, place, config));
  GRACE_TRY(read_experts(json, place, "moe_intermediate_size", config));
  GRACE_TRY(expect_only(json, "scoring_func", place, "softmax"));
  const std::string method =
      GRACE_TRY(read_one_of(json, "topk_method", place, {"greedy", "group_limited_greedy"}, "greedy"));
  GRACE_TRY(read_deepseek_experts(json, place, method != "greedy", config));
  // Weights that were made to sum to 1 are not scaled.
  if (config.norm_topk_prob) config.choice.scale = 1;
  return config;
}

}  // namespace

const Architecture kDeepseekV2 = {
    .name = "DeepseekV2ForCausalLM", .model_type = "deepseek_v2", .read_config = read_config};

}  // namespace grace
