#include "grace/model/config_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "grace/files/json_file.h"
#include "grace/model/config_fields.h"

namespace grace {
namespace {

constexpr std::int64_t kMaxHeads = 65536;

// Says what the weights are, so that the answer tells what is missing here.
Status expect_plain_weights(const Json& json, std::string_view place) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (!is_set(json, key)) continue;
    const Json& found = json.at(key);
    const bool named = found.is_object() && is_set(found, "quant_method");
    return unsupported(
        fmt::format("{}: {} says {}: quantised weights are not supported, only BF16, F16 and F32 are", place,
                    key, shown(named ? found.at("quant_method") : found)));
  }
  return {};
}

Status read_heads(const Json& json, std::string_view place, ModelConfig& config) {
  config.num_heads = GRACE_TRY(read_size(json, {"num_attention_heads"}, place, kMaxHeads));
  config.num_kv_heads =
      GRACE_TRY(read_size_or(json, "num_key_value_heads", place, kMaxHeads, config.num_heads));
  if (config.num_heads % config.num_kv_heads != 0) {
    return invalid_input(fmt::format("{}: num_key_value_heads is {}, no divisor of num_attention_heads {}",
                                     place, config.num_kv_heads, config.num_heads));
  }
  return {};
}

Status expect_even(int dim, std::string_view key, std::string_view place) {
  if (dim % 2 != 0) return invalid_input(fmt::format("{}: {} is {}, not even", place, key, dim));
  return {};
}

Result<Yarn> read_yarn(const Json& rope, std::string_view where, int original_positions) {
  Yarn yarn;
  yarn.factor = GRACE_TRY(read_positive_or(rope, "factor", where, 0));
  if (yarn.factor == 0) return invalid_input(fmt::format("{}: factor is missing", where));
  yarn.original_positions = GRACE_TRY(
      read_size_or(rope, "original_max_position_embeddings", where, kMaxPositions, original_positions));
  yarn.beta_fast = GRACE_TRY(read_positive_or(rope, "beta_fast", where, 32));
  yarn.beta_slow = GRACE_TRY(read_positive_or(rope, "beta_slow", where, 1));
  yarn.truncate = GRACE_TRY(read_flag_or(rope, "truncate", where, true));
  return yarn;
}

Status read_rope_object(const Json& rope, const std::string& where, int original_positions,
                        RopeFields& fields) {
  for (const char* key : {"rope_type", "type"}) {
    const std::string type = GRACE_TRY(read_one_of(rope, key, where, {"default", "yarn"}, "default"));
    if (type == "yarn" && !fields.yarn) fields.yarn = GRACE_TRY(read_yarn(rope, where, original_positions));
  }
  if (is_set(rope, "partial_rotary_factor")) {
    const double part = GRACE_TRY(get_number(rope, "partial_rotary_factor", where));
    if (part != 1)
      return unsupported(fmt::format("{}: partial_rotary_factor is {}, only 1 is supported", where, part));
  }
  fields.theta = GRACE_TRY(read_positive_or(rope, "rope_theta", where, fields.theta));
  for (auto& [key, value] :
       {std::pair{"attention_factor", &fields.attention_factor}, std::pair{"mscale", &fields.mscale},
        std::pair{"mscale_all_dim", &fields.mscale_all_dim}})
    if (is_set(rope, key)) *value = GRACE_TRY(get_number(rope, key, where));
  return {};
}

// The bounds of YaRN's ramp are logarithms to the base theta.
Status expect_base_for_yarn(const RopeFields& fields, std::string_view place) {
  if (fields.yarn && fields.theta <= 1)
    return invalid_input(
        fmt::format("{}: rope_theta is {}, not above 1 as YaRN needs it", place, fields.theta));
  return {};
}

}  // namespace

bool ModelConfig::is_moe(int layer) const { return std::ranges::binary_search(moe_layers, layer); }

Status read_model(const Json& json, std::string_view place, const ConfigDefaults& defaults,
                  ModelConfig& config) {
  GRACE_TRY(expect_plain_weights(json, place));
  GRACE_TRY(expect_only(json, "hidden_act", place, "silu"));
  config.hidden_size = GRACE_TRY(read_size(json, {"hidden_size"}, place, kMaxSize));
  config.num_layers = GRACE_TRY(read_size(json, {"num_hidden_layers"}, place, kMaxLayers));
  config.vocab_size = GRACE_TRY(read_size(json, {"vocab_size"}, place, kMaxSize));
  config.tie_word_embeddings =
      GRACE_TRY(read_flag_or(json, "tie_word_embeddings", place, defaults.tie_word_embeddings));
  config.rms_norm_eps = GRACE_TRY(read_positive_or(json, "rms_norm_eps", place, defaults.rms_norm_eps));
  config.max_positions =
      GRACE_TRY(read_size_or(json, "max_position_embeddings", place, kMaxPositions, defaults.max_positions));
  config.eos_token_ids = GRACE_TRY(read_eos_token_ids(json, place));
  return {};
}

Status read_grouped_attention(const Json& json, std::string_view place, ModelConfig& config) {
  GRACE_TRY(read_heads(json, place, config));
  if (is_set(json, "head_dim")) {
    config.head_dim = GRACE_TRY(read_size(json, {"head_dim"}, place, kMaxHeads));
  } else {
    if (config.hidden_size % config.num_heads != 0) {
      return invalid_input(fmt::format("{}: num_attention_heads is {}, no divisor of hidden_size {}", place,
                                       config.num_heads, config.hidden_size));
    }
    config.head_dim = config.hidden_size / config.num_heads;
  }
  GRACE_TRY(expect_even(config.head_dim, "head_dim", place));
  config.value_head_dim = config.rotary_dim = config.head_dim;
  config.attention_scale = 1 / std::sqrt(config.head_dim);
  return {};
}

Status read_latent_attention(const Json& json, std::string_view place, ModelConfig& config) {
  GRACE_TRY(read_heads(json, place, config));
  GRACE_TRY(expect_only(json, "attention_bias", place, nullptr));
  GRACE_TRY(expect_only(json, "mlp_bias", place, nullptr));
  config.attention = AttentionKind::kLatent;
  config.num_kv_heads = config.num_heads;
  config.kv_rank = GRACE_TRY(read_size(json, {"kv_lora_rank"}, place, kMaxSize));
  config.query_rank = GRACE_TRY(read_count_or(json, "q_lora_rank", place, 0));
  const int plain = GRACE_TRY(read_size(json, {"qk_nope_head_dim"}, place, kMaxHeads));
  config.rotary_dim = GRACE_TRY(read_size(json, {"qk_rope_head_dim"}, place, kMaxHeads));
  GRACE_TRY(expect_even(config.rotary_dim, "qk_rope_head_dim", place));
  config.head_dim = plain + config.rotary_dim;  // `head_dim`, where transformers wrote it, is the rotary part
  config.value_head_dim = GRACE_TRY(read_size(json, {"v_head_dim"}, place, kMaxHeads));
  config.attention_scale = 1 / std::sqrt(config.head_dim);
  return {};
}

Result<RopeFields> read_rope(const Json& json, std::string_view place, double theta, int original_positions) {
  RopeFields fields;
  fields.theta = GRACE_TRY(read_positive_or(json, "rope_theta", place, theta));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!is_set(json, key)) continue;
    const std::string where = fmt::format("{}: {}", place, key);
    if (!json.at(key).is_object())
      return invalid_input(fmt::format("{} is {}, not an object", where, shown(json.at(key))));
    GRACE_TRY(read_rope_object(json.at(key), where, original_positions, fields));
  }
  GRACE_TRY(expect_base_for_yarn(fields, place));
  return fields;
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

Status read_common_rope(const Json& json, std::string_view place, double theta, ModelConfig& config) {
  const RopeFields fields = GRACE_TRY(read_rope(json, place, theta, config.max_positions));
  config.rope.theta = fields.theta;
  config.rope.yarn = fields.yarn;
  if (!fields.yarn) return {};
  const double factor = fields.yarn->factor;
  const double mscale = fields.mscale.value_or(0), all_dim = fields.mscale_all_dim.value_or(0);
  config.rope.amplitude = fields.attention_factor ? *fields.attention_factor
                          : mscale != 0 && all_dim != 0
                              ? yarn_mscale(factor, mscale) / yarn_mscale(factor, all_dim)
                              : yarn_mscale(factor, 1);
  return {};
}

Status read_deepseek_rope(const Json& json, std::string_view place, ModelConfig& config) {
  constexpr int kOriginalPositions = 4096;
  const RopeFields fields = GRACE_TRY(read_rope(json, place, 10000, kOriginalPositions));
  config.rope.interleaved = GRACE_TRY(read_flag_or(json, "rope_interleave", place, true));
  config.rope.theta = fields.theta;
  config.rope.yarn = fields.yarn;
  if (!fields.yarn) return {};
  const double all_dim = yarn_mscale(fields.yarn->factor, fields.mscale_all_dim.value_or(0));
  config.rope.amplitude = yarn_mscale(fields.yarn->factor, fields.mscale.value_or(1)) / all_dim;
  config.attention_scale *= all_dim * all_dim;
  return {};
}

Status read_experts(const Json& json, std::string_view place, std::string_view ffn_key, ModelConfig& config,
                    int first_dense) {
  config.num_experts = GRACE_TRY(
      read_size(json, {"num_experts", "num_local_experts", "n_routed_experts"}, place, kMaxExperts));
  config.experts_per_token = GRACE_TRY(read_size(json, {"num_experts_per_tok"}, place, config.num_experts));
  config.expert_ffn_size = GRACE_TRY(read_size(json, {ffn_key}, place, kMaxSize));
  config.norm_topk_prob = GRACE_TRY(read_flag_or(json, "norm_topk_prob", place, false));
  config.moe_layers = GRACE_TRY(read_moe_layers(json, place, config.num_layers, first_dense));
  if (config.moe_layers.size() < static_cast<std::size_t>(config.num_layers))
    config.dense_ffn_size = GRACE_TRY(read_size(json, {"intermediate_size"}, place, kMaxSize));
  return {};
}

Status read_deepseek_experts(const Json& json, std::string_view place, bool limited, ModelConfig& config) {
  const std::int64_t shared = GRACE_TRY(read_count_or(json, "n_shared_experts", place, 0));
  if (shared * config.expert_ffn_size > kMaxSize)
    return invalid_input(fmt::format("{}: {} shared experts of {} are more than {}", place, shared,
                                     config.expert_ffn_size, kMaxSize));
  config.shared_ffn_size = static_cast<int>(shared * config.expert_ffn_size);
  config.norm_topk_prob = config.norm_topk_prob && config.experts_per_token > 1;
  config.choice.scale = GRACE_TRY(read_positive_or(json, "routed_scaling_factor", place, 1));
  if (!limited) return {};
  const int groups = GRACE_TRY(read_size_or(json, "n_group", place, config.num_experts, 1));
  const int kept = GRACE_TRY(read_size_or(json, "topk_group", place, groups, groups));
  const int of_group = config.num_experts / groups;
  if (config.num_experts % groups != 0)
    return invalid_input(
        fmt::format("{}: n_group is {}, no divisor of {} experts", place, groups, config.num_experts));
  if (kept * of_group < config.experts_per_token)
    return invalid_input(
        fmt::format("{}: topk_group is {}, whose {} experts are fewer than num_experts_per_tok {}", place,
                    kept, kept * of_group, config.experts_per_token));
  config.choice.groups = groups;
  config.choice.groups_kept = kept;
  return {};
}

}  // namespace grace
