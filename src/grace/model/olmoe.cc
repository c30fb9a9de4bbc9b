// OLMoE (Muennighoff et al., 2024): every layer is MoE, q and k are normalised over the whole projection.
#include <fmt/format.h>

#include <numeric>

#include "grace/model/architecture.h"
#include "grace/model/config_fields.h"

namespace grace {
namespace {

// Heads and their size. The norms of q and k span the whole projection, which ties head_dim to hidden_size.
Status read_heads(const Json& json, std::string_view place, ModelConfig& config) {
  config.num_heads = GRACE_TRY(read_size(json, {"num_attention_heads"}, place, kMaxSize));
  config.num_kv_heads =
      GRACE_TRY(read_size_or(json, "num_key_value_heads", place, kMaxSize, config.num_heads));
  if (config.num_heads % config.num_kv_heads != 0) {
    return invalid_input(fmt::format("{}: num_key_value_heads is {}, no divisor of num_attention_heads {}",
                                     place, config.num_kv_heads, config.num_heads));
  }
  if (config.hidden_size % config.num_heads != 0) {
    return invalid_input(fmt::format("{}: num_attention_heads is {}, no divisor of hidden_size {}", place,
                                     config.num_heads, config.hidden_size));
  }
  const int head_dim = config.hidden_size / config.num_heads;
  config.head_dim = GRACE_TRY(read_size_or(json, "head_dim", place, kMaxSize, head_dim));
  if (config.head_dim != head_dim) {
    return invalid_input(fmt::format("{}: head_dim is {}, not hidden_size / num_attention_heads = {}", place,
                                     config.head_dim, head_dim));
  }
  if (head_dim % 2 != 0) return invalid_input(fmt::format("{}: head_dim is {}, not even", place, head_dim));
  return {};
}

Status read_experts(const Json& json, std::string_view place, ModelConfig& config) {
  config.num_experts = GRACE_TRY(read_size(json, {"num_experts", "num_local_experts"}, place, kMaxExperts));
  config.experts_per_token = GRACE_TRY(read_size(json, {"num_experts_per_tok"}, place, config.num_experts));
  config.expert_ffn_size = GRACE_TRY(read_size(json, {"intermediate_size"}, place, kMaxSize));
  config.norm_topk_prob = GRACE_TRY(read_flag_or(json, "norm_topk_prob", place, false));
  config.moe_layers.resize(static_cast<std::size_t>(config.num_layers));
  std::iota(config.moe_layers.begin(), config.moe_layers.end(), 0);
  return {};
}

// What other OLMoE files could ask for and this program does not do.
Status expect_supported(const Json& json, std::string_view place) {
  GRACE_TRY(expect_only(json, "hidden_act", place, "silu"));
  GRACE_TRY(expect_only(json, "attention_bias", place, nullptr));
  GRACE_TRY(expect_only(json, "sliding_window", place, nullptr));
  GRACE_TRY(expect_only(json, "quantization_config", place, nullptr));
  return {};
}

Result<ModelConfig> read_config(const Json& json, std::string_view place) {
  ModelConfig config;
  config.architecture = kOlmoe.name;
  config.hidden_size = GRACE_TRY(read_size(json, {"hidden_size"}, place, kMaxSize));
  config.num_layers = GRACE_TRY(read_size(json, {"num_hidden_layers"}, place, kMaxLayers));
  config.vocab_size = GRACE_TRY(read_size(json, {"vocab_size"}, place, kMaxSize));
  GRACE_TRY(read_heads(json, place, config));
  GRACE_TRY(read_experts(json, place, config));
  config.tie_word_embeddings = GRACE_TRY(read_flag_or(json, "tie_word_embeddings", place, false));
  config.rms_norm_eps = GRACE_TRY(read_positive_or(json, "rms_norm_eps", place, 1e-5));
  config.rope_theta = GRACE_TRY(read_plain_rope_theta(json, place, 10000));
  config.clip_qkv = GRACE_TRY(read_optional_positive(json, "clip_qkv", place));
  config.max_positions = GRACE_TRY(read_size_or(json, "max_position_embeddings", place, kMaxPositions, 4096));
  config.eos_token_ids = GRACE_TRY(read_eos_token_ids(json, place));
  GRACE_TRY(expect_supported(json, place));
  return config;
}

}  // namespace

const Architecture kOlmoe = {
    .name = "OlmoeForCausalLM",
    .model_type = "olmoe",
    .read_config = read_config,
    .names =
        {
            .embedding = "model.embed_tokens.weight",
            .final_norm = "model.norm.weight",
            .lm_head = "lm_head.weight",
            .input_norm = "model.layers.{layer}.input_layernorm.weight",
            .post_attention_norm = "model.layers.{layer}.post_attention_layernorm.weight",
            .q = "model.layers.{layer}.self_attn.q_proj.weight",
            .k = "model.layers.{layer}.self_attn.k_proj.weight",
            .v = "model.layers.{layer}.self_attn.v_proj.weight",
            .o = "model.layers.{layer}.self_attn.o_proj.weight",
            .q_norm = "model.layers.{layer}.self_attn.q_norm.weight",
            .k_norm = "model.layers.{layer}.self_attn.k_norm.weight",
            .router = "model.layers.{layer}.mlp.gate.weight",
            .gate = "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight",
            .up = "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",
            .down = "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight",
            .fused_gate_up = "model.layers.{layer}.mlp.experts.gate_up_proj",
            .fused_down = "model.layers.{layer}.mlp.experts.down_proj",
        },
};

}  // namespace grace
