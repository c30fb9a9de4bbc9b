// A model as people have it: a Hugging Face folder, read into shapes and weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/ids.h"
#include "grace/base/matrix_view.h"
#include "grace/base/result.h"
#include "grace/files/safetensors.h"
#include "grace/model/shape.h"

namespace grace {

// How queries and keys are normalised between projection and rotation.
enum class QkNorm : std::uint8_t { kNone, kWhole, kPerHead };

// Frequencies stretched for contexts longer than those trained with (Peng et al., 2023).
struct Yarn {
  double factor = 1;
  int original_positions = 0;
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;  // bounds of the ramp are whole dimensions
  bool operator==(const Yarn&) const = default;
};

struct Rope {
  bool interleaved = false;  // pairs (2i, 2i + 1); otherwise (i, i + dim / 2)
  double theta = 10000;
  std::optional<Yarn> yarn;
  double amplitude = 1;  // of sine and cosine
};

enum class Scoring : std::uint8_t { kSoftmax, kSigmoid };

// How a token's experts are chosen out of their scores, and weighed by them.
struct ExpertChoice {
  Scoring scoring = Scoring::kSoftmax;
  bool corrected = false;  // a bias of each expert counts in the choice and not in the weight
  int groups = 1;          // of E / groups consecutive experts
  int groups_kept = 1;     // a token's experts are of its best groups alone
  int group_best = 1;      // a group is as good as the sum of so many of its best experts
  double scale = 1;        // of the weights
};

// What config.json says, in the field's words; both of its spellings are read (docs/formats/model.md).
struct ModelConfig {
  std::string architecture;  // "OlmoeForCausalLM"
  std::string name;          // the folder's name
  int hidden_size = 0;       // H
  int num_layers = 0;        // L, decoder layers
  int vocab_size = 0;        // V
  bool tie_word_embeddings = false;
  double rms_norm_eps = 1e-5;
  int max_positions = 0;
  std::vector<std::int32_t> eos_token_ids;

  AttentionKind attention = AttentionKind::kGrouped;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;        // of a query and a key; latent: without position, then rotary_dim with it
  int value_head_dim = 0;  // of a value
  int rotary_dim = 0;      // the last of a head's dimensions, which are rotated; grouped: all
  int query_rank = 0;      // latent: 0 where queries are not compressed
  int kv_rank = 0;         // latent
  QkNorm qk_norm = QkNorm::kNone;
  bool qkv_bias = false;
  bool output_bias = false;
  std::optional<double> clip_qkv;
  int window = 0;  // a token attends to so many last tokens, itself included; 0: to all
  Rope rope;
  double attention_scale = 1;  // of the products of queries and keys

  std::vector<int> moe_layers;  // [M]: decoder layers that are MoE, ascending
  int num_experts = 0;          // E
  int experts_per_token = 0;    // K
  int expert_ffn_size = 0;      // F
  bool norm_topk_prob = false;
  ExpertChoice choice;
  int shared_ffn_size = 0;       // summed over the shared experts; 0: none
  bool shared_switched = false;  // what they say is weighed by a sigmoid of the token
  int dense_ffn_size = 0;        // of the layers that are not MoE; 0 where there is none

  bool is_moe(int layer) const;
};

// Errors: io; invalid_input `config.json: num_experts is missing`; unsupported, naming the architecture found
// and those known. End-of-text ids are those of config.json, then those that only generation_config.json has.
Result<ModelConfig> read_model_config(const std::filesystem::path& folder);
// The text of a config.json; `place` stands for its path in messages. Errors: those above, without io.
Result<ModelConfig> parse_model_config(std::string_view text, std::string_view place);

// The tensors of a folder, over one file (model.safetensors) or the shards of its index
// (model.safetensors.index.json). Opening reads headers only. Immutable, thread-safe.
class Checkpoint {
 public:
  // Errors: io; invalid_input for a broken file or index, for an index that names a tensor its shard lacks.
  static Result<Checkpoint> open(const std::filesystem::path& folder);
  // Errors: invalid_input `FOLDER: no tensor NAME`.
  Result<TensorView> find(const std::string& name) const;
  bool has(const std::string& name) const { return file_of_tensor_.contains(name); }
  // Lets go of the memory that reading a weight of it took; what is read again comes from the file.
  void give_back(const MatrixView& weight) const;
  // Where a weight of it stands, as part of a file's name: `model-00001-of-00004.123456`, the shard and the
  // byte in it. REQUIRES: it is a weight of it.
  std::string place_of(const MatrixView& weight) const;
  std::vector<std::filesystem::path> paths() const;  // of its files
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  std::vector<Safetensors> files_;
  std::map<std::string, std::size_t> file_of_tensor_;
};

// Row `row` of a weight that is not stored transposed, widened. out: [cols].
void read_row(const MatrixView& weight, int row, std::span<float> out);

// Weights are views into the checkpoint; those that a model does not have are empty.
struct FfnWeights {
  MatrixView gate;  // [F, H]
  MatrixView up;    // [F, H]
  MatrixView down;  // [H, F]
};

struct ExpertWeights {
  ExpertId expert;
  FfnWeights ffn;
};

struct LayerWeights {
  std::vector<float> input_norm;           // [H]
  std::vector<float> post_attention_norm;  // [H]

  MatrixView q;     // [heads * head_dim, H], or where queries are compressed [heads * head_dim, query_rank]
  MatrixView k, v;  // [kv heads * head_dim, H], grouped attention
  MatrixView o;     // [H, heads * value_head_dim]
  std::vector<float> q_bias, k_bias, v_bias, o_bias;
  std::vector<float> q_norm, k_norm;  // of the whole projection or of one head, as QkNorm says

  MatrixView q_down;   // [query_rank, H], whose norm is q_down_norm
  MatrixView kv_down;  // [kv_rank + rotary_dim, H], whose first kv_rank kv_down_norm normalises
  MatrixView kv_up;    // [heads * (key without position + value), kv_rank]
  std::vector<float> q_down_norm, kv_down_norm;

  MatrixView router;               // [E, H]
  std::vector<float> router_bias;  // [E]
  FfnWeights shared;
  MatrixView shared_switch;  // [1, H]
  FfnWeights dense;          // of a layer that is not MoE
};

struct DenseWeights {
  MatrixView embedding;  // [V, H]
  MatrixView lm_head;    // [V, H]; empty when tied to the embedding
  std::vector<float> final_norm;
  std::vector<LayerWeights> layers;  // [L]
};

// What an architecture is made of, and how to add one: architecture.h.
// Everything but the experts; views are valid while the checkpoint lives. Errors: invalid_input for a missing
// tensor or a wrong shape (name, found, expected), unsupported for a dtype.
Result<DenseWeights> load_dense(const ModelConfig& config, const Checkpoint& checkpoint);
// The named experts of one MoE layer and no other bytes; in the order asked. Errors: as above; unsupported
// for fused experts whose layout the shapes do not tell. REQUIRES: layer in [0, M), every expert in [0, E).
Result<std::vector<ExpertWeights>> load_experts(const ModelConfig& config, const Checkpoint& checkpoint,
                                                MoeOrdinal layer, std::span<const ExpertId> experts);

// Everything that is wrong with a folder, a line each, without reading weights: config, names, shapes, dtypes
// of every tensor it needs. After a thousand lines, `and more`.
std::vector<std::string> check_model(const std::filesystem::path& folder);

}  // namespace grace
