// The sizes of a model that planning and simulation need, without its weights: out of a config.json of any
// Mixture-of-Experts family that spells its fields as OLMoE, DeepSeek, Qwen, Mixtral or gpt-oss do.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/result.h"

namespace grace {

// Grouped: heads share keys and values (one to one is multi-head). Latent: keys and values are low-rank
// projections of one cached vector (DeepSeek's MLA).
enum class AttentionKind { kGrouped, kLatent };

// Immutable once read; every size is at least 1 unless it says otherwise.
struct ModelShape {
  std::string name = {};
  int hidden = 0;      // H
  int num_layers = 0;  // L, decoder layers
  int vocab = 0;       // V
  bool tied_head = false;

  AttentionKind attention = AttentionKind::kGrouped;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;  // of a query and a key; latent: the part without position and the rotary part together
  int value_head_dim = 0;                 // of a value
  int query_rank = 0;                     // latent: 0 where queries are not compressed
  int kv_rank = 0;                        // latent
  int rotary_dim = 0;                     // latent: of the one rotary key that all heads share; may be 0
  int window = 0;                         // keys a token of a windowed layer attends to at most
  std::vector<int> windowed_layers = {};  // ascending; empty: every layer attends to all that came before

  std::vector<int> moe_layers = {};  // [M] ascending
  int num_experts = 0;               // E
  int experts_per_token = 0;         // K
  int expert_ffn = 0;                // F
  int shared_expert_ffn = 0;         // summed over the shared experts; 0: none
  int dense_ffn = 0;                 // of the layers that are not MoE; 0 where there is none

  bool is_moe(int layer) const;
  bool operator==(const ModelShape&) const = default;
};

// The text of a config.json; `place` stands for its path in messages and is the shape's name. A text model
// inside a larger one is found under `text_config` or `language_config`. Errors: invalid_input for a field
// that is absent or out of bounds; unsupported for a config without experts.
Result<ModelShape> parse_shape(std::string_view text, std::string_view place);

// The names of the shapes built in.
std::vector<std::string_view> known_shapes();
// A shape by the name people give its model, whatever its case, owner and suffix: "olmoe",
// "OLMoE-1B-7B-0125", "Qwen/Qwen3-30B-A3B-Instruct-2507".
std::optional<ModelShape> known_shape(std::string_view name);
// A known name, else the path of a config.json or of a folder with one. Errors: invalid_input, naming the
// known, for what is neither; those of parse_shape.
Result<ModelShape> find_shape(std::string_view name_or_path);

// What one token costs in a part of the model, and what the part weighs. A multiplication with its addition
// counts as two operations; norms and activations, far below one per cent, count nothing.
struct PartCost {
  double flops = 0;         // a token
  double cache_values = 0;  // keys and values it reads, a token
  double parameters = 0;    // read once for all tokens that pass together
  PartCost& operator+=(const PartCost& other);
};

// Prefill: keys and values are expanded and read once for many tokens, which counts nothing. Decode: each
// token reads its own cache, and latent attention works on the cached vectors as they are.
enum class Pass { kPrefill, kDecode };

// Attention of one layer, its four projections included, for a token that attends to `keys` keys, its own
// among them. Linear in keys, so that a mean gives the mean cost.
PartCost attention_cost(const ModelShape& shape, Pass pass, double keys);
PartCost dense_ffn_cost(const ModelShape& shape);  // of a layer that is not MoE
PartCost shared_experts_cost(const ModelShape& shape);
PartCost router_cost(const ModelShape& shape);
PartCost lm_head_cost(const ModelShape& shape);
// One expert, for one assignment.
PartCost expert_cost(const ModelShape& shape);

// Of the whole model, embedding included; norms and biases are not.
double total_parameters(const ModelShape& shape);
// Of those, what one token uses: K experts of each MoE layer.
double active_parameters(const ModelShape& shape);

}  // namespace grace
