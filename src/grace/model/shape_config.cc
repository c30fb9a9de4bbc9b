// config.json -> ModelShape, by the fields' names and not by the architecture's: families share them.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "grace/files/json_file.h"
#include "grace/model/config_fields.h"
#include "grace/model/shape.h"

namespace grace {
namespace {

constexpr std::int64_t kMaxHeadDim = 65536;

// The object that describes the text model: a model of pictures and text keeps it inside.
const Json& text_model_in(const Json& json) {
  for (const char* key : {"text_config", "language_config"})
    if (is_set(json, key) && json.at(key).is_object() && is_set(json.at(key), "hidden_size"))
      return json.at(key);
  return json;
}

Status read_latent_attention(const Json& json, std::string_view place, ModelShape& shape) {
  shape.attention = AttentionKind::kLatent;
  shape.kv_rank = GRACE_TRY(read_size(json, {"kv_lora_rank"}, place, kMaxSize));
  shape.query_rank = GRACE_TRY(read_count_or(json, "q_lora_rank", place, 0));
  const int plain = GRACE_TRY(read_size(json, {"qk_nope_head_dim"}, place, kMaxHeadDim));
  shape.rotary_dim = GRACE_TRY(read_count_or(json, "qk_rope_head_dim", place, 0));
  shape.head_dim = plain + shape.rotary_dim;  // what `head_dim` says here is the rotary part, or nothing
  shape.value_head_dim = GRACE_TRY(read_size(json, {"v_head_dim"}, place, kMaxHeadDim));
  shape.num_kv_heads = shape.num_heads;
  return {};
}

Status read_attention(const Json& json, std::string_view place, ModelShape& shape) {
  shape.num_heads = GRACE_TRY(read_size(json, {"num_attention_heads"}, place, kMaxHeadDim));
  const bool latent = is_set(json, "kv_lora_rank") && GRACE_TRY(read_flag_or(json, "use_mla", place, true));
  if (latent) return read_latent_attention(json, place, shape);
  shape.num_kv_heads =
      GRACE_TRY(read_size_or(json, "num_key_value_heads", place, kMaxHeadDim, shape.num_heads));
  if (shape.num_heads % shape.num_kv_heads != 0)
    return invalid_input(fmt::format("{}: num_attention_heads {} is no multiple of num_key_value_heads {}",
                                     place, shape.num_heads, shape.num_kv_heads));
  if (!is_set(json, "head_dim") && shape.hidden % shape.num_heads != 0)
    return invalid_input(fmt::format("{}: hidden_size {} is no multiple of num_attention_heads {}", place,
                                     shape.hidden, shape.num_heads));
  shape.head_dim =
      GRACE_TRY(read_size_or(json, "head_dim", place, kMaxHeadDim, shape.hidden / shape.num_heads));
  shape.value_head_dim = shape.head_dim;
  return {};
}

// Which layers are windowed: those `layer_types` says, else those each family's own rule says.
Status read_windows(const Json& json, std::string_view place, ModelShape& shape) {
  const int window = GRACE_TRY(read_count_or(json, "sliding_window", place, 0));
  if (window == 0 || !GRACE_TRY(read_flag_or(json, "use_sliding_window", place, true))) return {};
  const bool has_types = is_set(json, "layer_types");
  if (has_types && (!json.at("layer_types").is_array() ||
                    json.at("layer_types").size() != static_cast<std::size_t>(shape.num_layers)))
    return invalid_input(fmt::format("{}: layer_types is {}, not a list of {} names", place,
                                     shown(json.at("layer_types")), shape.num_layers));
  const int first = GRACE_TRY(read_count_or(json, "max_window_layers", place, 0));
  const bool every_other = is_set(json, "model_type") && json.at("model_type") == "gpt_oss";
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    const bool windowed = has_types
                              ? json.at("layer_types")[static_cast<std::size_t>(layer)] == "sliding_attention"
                              : layer >= first && !(every_other && layer % 2 == 1);
    if (windowed) shape.windowed_layers.push_back(layer);
  }
  if (!shape.windowed_layers.empty()) shape.window = window;
  return {};
}

Status read_shared_experts(const Json& json, std::string_view place, ModelShape& shape) {
  if (is_set(json, "shared_expert_intermediate_size")) {
    shape.shared_expert_ffn = GRACE_TRY(read_count_or(json, "shared_expert_intermediate_size", place, 0));
    return {};
  }
  const std::int64_t shared = GRACE_TRY(read_count_or(json, "n_shared_experts", place, 0));
  if (shared * shape.expert_ffn > kMaxSize)
    return invalid_input(fmt::format("{}: {} shared experts of {} are more than {}", place, shared,
                                     shape.expert_ffn, kMaxSize));
  shape.shared_expert_ffn = static_cast<int>(shared * shape.expert_ffn);
  return {};
}

Status read_experts(const Json& json, std::string_view place, ModelShape& shape) {
  const auto keys = {"num_experts", "num_local_experts", "n_routed_experts"};
  if (std::ranges::none_of(keys, [&](const char* key) { return is_set(json, key); }))
    return unsupported(fmt::format(
        "{}: none of num_experts, num_local_experts and n_routed_experts is set: no Mixture-of-Experts model",
        place));
  shape.num_experts = GRACE_TRY(
      read_size(json, {"num_experts", "num_local_experts", "n_routed_experts"}, place, kMaxExperts));
  shape.experts_per_token =
      GRACE_TRY(read_size(json, {"num_experts_per_tok", "experts_per_token"}, place, shape.num_experts));
  // Where experts have a size of their own, `intermediate_size` is that of the dense layers.
  shape.expert_ffn =
      GRACE_TRY(read_size(json, {"moe_intermediate_size", "intermediate_size"}, place, kMaxSize));
  GRACE_TRY(read_shared_experts(json, place, shape));
  shape.moe_layers = GRACE_TRY(read_moe_layers(json, place, shape.num_layers));
  if (shape.moe_layers.size() < static_cast<std::size_t>(shape.num_layers))
    shape.dense_ffn = GRACE_TRY(read_size(json, {"intermediate_size"}, place, kMaxSize));
  return {};
}

}  // namespace

Result<ModelShape> parse_shape(std::string_view text, std::string_view place) {
  const Json whole = GRACE_TRY(parse_json(text, place));
  if (!whole.is_object()) return invalid_input(fmt::format("{}: {} is not an object", place, shown(whole)));
  const Json& json = text_model_in(whole);
  ModelShape shape;
  shape.name = place;
  shape.hidden = GRACE_TRY(read_size(json, {"hidden_size"}, place, kMaxSize));
  shape.num_layers = GRACE_TRY(read_size(json, {"num_hidden_layers"}, place, kMaxLayers));
  shape.vocab = GRACE_TRY(read_size(json, {"vocab_size"}, place, kMaxSize));
  shape.tied_head = GRACE_TRY(read_flag_or(json, "tie_word_embeddings", place, false));
  GRACE_TRY(read_attention(json, place, shape));
  GRACE_TRY(read_windows(json, place, shape));
  GRACE_TRY(read_experts(json, place, shape));
  return shape;
}

}  // namespace grace
