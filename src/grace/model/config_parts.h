// Parts of a ModelConfig that architectures share, read from config.json in both of its spellings. `place`
// names the file in messages.
#pragma once

#include <optional>
#include <string_view>

#include "grace/base/result.h"
#include "grace/files/json.h"
#include "grace/model/model.h"

namespace grace {

// What a config.json that does not say otherwise means.
struct ConfigDefaults {
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  int max_positions = 4096;
  bool tie_word_embeddings = false;
};

// Sizes, norms, positions, end of text. Errors, here and below: invalid_input; unsupported for what this
// program does not do, quantised weights and activations other than silu among it.
Status read_model(const Json& json, std::string_view place, const ConfigDefaults& defaults,
                  ModelConfig& config);

// Heads that share keys and values; head_dim is `head_dim`, else hidden_size / num_attention_heads.
Status read_grouped_attention(const Json& json, std::string_view place, ModelConfig& config);
// Keys and values out of one latent vector (MLA).
Status read_latent_attention(const Json& json, std::string_view place, ModelConfig& config);

// `rope_theta` beside `rope_scaling`, or both in `rope_parameters`: nothing but a base, or YaRN.
struct RopeFields {
  double theta = 0;
  std::optional<Yarn> yarn;
  std::optional<double> attention_factor, mscale, mscale_all_dim;
};
Result<RopeFields> read_rope(const Json& json, std::string_view place, double theta, int original_positions);
// 0.1 * mscale * ln(factor) + 1, and 1 for a factor up to 1.
double yarn_mscale(double factor, double mscale);
// rope and attention_scale as transformers has them for all but DeepSeek: YaRN's attention_factor, else
// yarn_mscale(factor, 1), scales sine and cosine.
Status read_common_rope(const Json& json, std::string_view place, double theta, ModelConfig& config);
// The same as DeepSeek's own code has them: an absent mscale is 1 and an absent mscale_all_dim 0; sine and
// cosine are scaled by the quotient of the two's yarn_mscale, products by the square of the latter's.
Status read_deepseek_rope(const Json& json, std::string_view place, ModelConfig& config);

// num_experts under any of its names, num_experts_per_tok, and which layers are MoE. ffn_key: where F is.
Status read_experts(const Json& json, std::string_view place, std::string_view ffn_key, ModelConfig& config,
                    int first_dense = 0);
// DeepSeek's: choice and norm_topk_prob but scoring, shared experts. limited: whether groups are limited at
// all.
Status read_deepseek_experts(const Json& json, std::string_view place, bool limited, ModelConfig& config);

}  // namespace grace
