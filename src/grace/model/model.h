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
#include "grace/base/result.h"
#include "grace/files/safetensors.h"

namespace grace {

// What config.json says, in the field's words; both of its spellings are read (docs/formats/model.md).
struct ModelConfig {
  std::string architecture;  // "OlmoeForCausalLM"
  std::string name;          // the folder's name
  int hidden_size = 0;       // H
  int num_layers = 0;        // L, decoder layers
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;         // V
  int num_experts = 0;        // E
  int experts_per_token = 0;  // K
  int expert_ffn_size = 0;    // F
  bool norm_topk_prob = false;
  bool tie_word_embeddings = false;
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000;
  std::optional<double> clip_qkv;
  int max_positions = 0;
  std::vector<std::int32_t> eos_token_ids;
  std::vector<int> moe_layers;  // [M]: decoder layers that are MoE
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
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  std::vector<Safetensors> files_;
  std::map<std::string, std::size_t> file_of_tensor_;
};

// f32, row-major [rows, cols]. Owner.
struct Matrix {
  int rows = 0;
  int cols = 0;
  std::vector<float> values;
};

struct ExpertWeights {
  ExpertId expert;
  Matrix gate;  // [F, H]
  Matrix up;    // [F, H]
  Matrix down;  // [H, F]
};

struct LayerWeights {
  std::vector<float> input_norm;           // [H]
  std::vector<float> post_attention_norm;  // [H]
  Matrix q, k, v, o;          // [heads * head_dim, H] (kv heads for k and v), o: [H, heads * head_dim]
  std::vector<float> q_norm;  // over the whole projection (OLMoE), empty without qk-norm
  std::vector<float> k_norm;
  Matrix router;  // [E, H]
};

struct DenseWeights {
  Matrix embedding;  // [V, H]
  Matrix lm_head;    // [V, H]; empty when tied to the embedding
  std::vector<float> final_norm;
  std::vector<LayerWeights> layers;  // [L]
};

// What an architecture is made of, and how to add one: architecture.h.
// Everything but the experts. Errors: invalid_input for a missing tensor or a wrong shape (name, found,
// expected), unsupported for a dtype.
Result<DenseWeights> load_dense(const ModelConfig& config, const Checkpoint& checkpoint);
// The named experts of one MoE layer and no other bytes; in the order asked. Errors: as above; unsupported
// for fused experts whose layout the shapes do not tell. REQUIRES: layer in [0, M), every expert in [0, E).
Result<std::vector<ExpertWeights>> load_experts(const ModelConfig& config, const Checkpoint& checkpoint,
                                                MoeOrdinal layer, std::span<const ExpertId> experts);

// Everything that is wrong with a folder, a line each, without reading weights: config, names, shapes, dtypes
// of every tensor it needs. After a thousand lines, `and more`.
std::vector<std::string> check_model(const std::filesystem::path& folder);

}  // namespace grace
