// What tells one architecture from another: how its config.json reads, and what its weights are called.
// A new one is one .cc with an Architecture and one line in the table of architecture.cc.
#pragma once

#include <span>
#include <string_view>

#include "grace/base/result.h"
#include "grace/files/json.h"
#include "grace/model/model.h"

namespace grace {

// Tensor names; `{layer}` stands for the decoder layer, `{expert}` for the logical expert. Those of weights
// that an architecture's config never asks for are not looked at. As most models are published; an
// architecture changes what it calls otherwise.
struct WeightNames {
  std::string_view embedding = "model.embed_tokens.weight";
  std::string_view final_norm = "model.norm.weight";
  std::string_view lm_head = "lm_head.weight";
  std::string_view input_norm = "model.layers.{layer}.input_layernorm.weight";
  std::string_view post_attention_norm = "model.layers.{layer}.post_attention_layernorm.weight";

  std::string_view q = "model.layers.{layer}.self_attn.q_proj.weight";
  std::string_view k = "model.layers.{layer}.self_attn.k_proj.weight";
  std::string_view v = "model.layers.{layer}.self_attn.v_proj.weight";
  std::string_view o = "model.layers.{layer}.self_attn.o_proj.weight";
  std::string_view q_bias = "model.layers.{layer}.self_attn.q_proj.bias";
  std::string_view k_bias = "model.layers.{layer}.self_attn.k_proj.bias";
  std::string_view v_bias = "model.layers.{layer}.self_attn.v_proj.bias";
  std::string_view o_bias = "model.layers.{layer}.self_attn.o_proj.bias";
  std::string_view q_norm = "model.layers.{layer}.self_attn.q_norm.weight";
  std::string_view k_norm = "model.layers.{layer}.self_attn.k_norm.weight";

  std::string_view q_down = "model.layers.{layer}.self_attn.q_a_proj.weight";
  std::string_view q_down_norm = "model.layers.{layer}.self_attn.q_a_layernorm.weight";
  std::string_view q_up = "model.layers.{layer}.self_attn.q_b_proj.weight";
  std::string_view kv_down = "model.layers.{layer}.self_attn.kv_a_proj_with_mqa.weight";
  std::string_view kv_down_norm = "model.layers.{layer}.self_attn.kv_a_layernorm.weight";
  std::string_view kv_up = "model.layers.{layer}.self_attn.kv_b_proj.weight";

  std::string_view router = "model.layers.{layer}.mlp.gate.weight";
  std::string_view router_alias = {};  // what some call it; empty: nobody does
  std::string_view router_bias = "model.layers.{layer}.mlp.gate.e_score_correction_bias";
  // One expert each.
  std::string_view gate = "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight";
  std::string_view up = "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight";
  std::string_view down = "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight";
  // All experts of a layer: [E, 2F, H] with the gate rows first, and [E, H, F].
  std::string_view fused_gate_up = "model.layers.{layer}.mlp.experts.gate_up_proj";
  std::string_view fused_down = "model.layers.{layer}.mlp.experts.down_proj";

  std::string_view shared_gate = "model.layers.{layer}.mlp.shared_experts.gate_proj.weight";
  std::string_view shared_up = "model.layers.{layer}.mlp.shared_experts.up_proj.weight";
  std::string_view shared_down = "model.layers.{layer}.mlp.shared_experts.down_proj.weight";
  std::string_view shared_switch = "model.layers.{layer}.mlp.shared_expert_gate.weight";

  std::string_view dense_gate = "model.layers.{layer}.mlp.gate_proj.weight";
  std::string_view dense_up = "model.layers.{layer}.mlp.up_proj.weight";
  std::string_view dense_down = "model.layers.{layer}.mlp.down_proj.weight";
};

struct Architecture {
  std::string_view name;        // in `architectures` of config.json
  std::string_view model_type;  // in `model_type`, which decides where `architectures` is absent
  // Everything of ModelConfig but `name`. `place` names the file in messages.
  Result<ModelConfig> (*read_config)(const Json& json, std::string_view place);
  WeightNames names = {};
};

extern const Architecture kOlmoe, kDeepseekV2, kDeepseekV3, kQwen3Moe, kQwen2Moe, kMixtral;

std::span<const Architecture* const> known_architectures();
// Errors: unsupported `PLACE: architecture X is not one of ...`.
Result<const Architecture*> find_architecture(std::string_view name, std::string_view place);

}  // namespace grace
