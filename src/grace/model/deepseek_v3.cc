// DeepSeek-V3 (DeepSeek-AI, 2024): V2 with a sigmoid gate, chosen with a correction bias and by the two best
// of a group. The layer of multi-token prediction behind the last one is not read.
#include <fmt/format.h>

#include "grace/files/json_file.h"
#include "grace/model/architecture.h"
#include "grace/model/config_fields.h"
#include "grace/model/config_parts.h"

namespace grace {
namespace {

Result<ModelConfig> read_config(const Json& json, std::string_view place) {
  ModelConfig config;
  config.architecture = kDeepseekV3.name;
  GRACE_TRY(read_model(json, place, {}, config));
  GRACE_TRY(read_latent_attention(json, place, config));
  GRACE_TRY(read_deepseek_rope(json, place, config));
  GRACE_TRY(read_experts(json, place, "moe_intermediate_size", config, 3));
  if (!is_set(json, "norm_topk_prob")) config.norm_topk_prob = true;
  GRACE_TRY(expect_only(json, "scoring_func", place, "sigmoid"));
  GRACE_TRY(expect_only(json, "topk_method", place, "noaux_tc"));
  GRACE_TRY(read_deepseek_experts(json, place, true, config));
  config.choice.scoring = Scoring::kSigmoid;
  config.choice.corrected = true;
  config.choice.group_best = 2;
  if (config.choice.groups > 1 && config.num_experts / config.choice.groups < config.choice.group_best)
    return invalid_input(fmt::format("{}: n_group is {}, which leaves fewer than 2 of {} experts to each",
                                     place, config.choice.groups, config.num_experts));
  return config;
}

}  // namespace

const Architecture kDeepseekV3 = {
    .name = "DeepseekV3ForCausalLM", .model_type = "deepseek_v3", .read_config = read_config};

}  // namespace grace
