// For tests: a small random OLMoE folder, and its forward pass in plain loops that know nothing of plans,
// ranks or caches.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "grace/base/check.h"
#include "grace/base/rng.h"
#include "grace/files/json_file.h"
#include "grace/files/safetensors.h"
#include "grace/kernels/kernels.h"
#include "grace/model/model.h"

namespace grace {

struct TinyShape {
  int hidden = 32, layers = 2, heads = 4, kv_heads = 2, vocab = 61, experts = 8, top = 2, ffn = 20,
      max_positions = 64;
  bool normalise = false;
  bool zero_router = false;  // every token then ties, and chooses experts 0..K-1
  double clip = 0.8;         // low enough to clip
  std::vector<std::int32_t> eos{};
  std::uint64_t seed = 1;
};

// A folder that lives as long as this object.
class TinyModel {
 public:
  explicit TinyModel(const TinyShape& shape) : shape_(shape) {
    static int count = 0;
    folder_ = std::filesystem::temp_directory_path() /
              ("grace_tiny_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
    std::filesystem::create_directories(folder_);
    make_tensors();
    write_folder();
  }
  ~TinyModel() { std::filesystem::remove_all(folder_); }
  TinyModel(const TinyModel&) = delete;
  TinyModel& operator=(const TinyModel&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  const TinyShape& shape() const { return shape_; }

  struct Answer {
    std::vector<float> logits;       // [T, V]
    std::vector<std::uint16_t> ids;  // [T, M, K]
    std::vector<float> weights;      // [T, M, K]
  };
  // The forward pass over one whole sequence.
  Answer forward(const std::vector<std::int32_t>& tokens) const {
    const std::size_t count = tokens.size();
    const auto hidden = static_cast<std::size_t>(shape_.hidden);
    std::vector<float> h;
    for (const std::int32_t id : tokens) {
      const float* row = at("model.embed_tokens.weight").data() + static_cast<std::size_t>(id) * hidden;
      h.insert(h.end(), row, row + hidden);
    }
    const std::size_t cells = static_cast<std::size_t>(shape_.layers * shape_.top);
    Answer answer{{}, std::vector<std::uint16_t>(count * cells), std::vector<float>(count * cells)};
    for (int layer = 0; layer < shape_.layers; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      attend(prefix, h);
      feed_forward(prefix, layer, h, answer);
    }
    kernels::reference::rms_norm(h, at("model.norm.weight"), kEps, h);
    answer.logits = multiply(h, "lm_head.weight", shape_.vocab, shape_.hidden);
    return answer;
  }

 private:
  static constexpr double kEps = 1e-5;
  static constexpr double kTheta = 10000;

  const std::vector<float>& at(const std::string& name) const { return tensors_.at(name); }

  std::vector<float> multiply(const std::vector<float>& x, const std::string& weight, int out, int in) const {
    std::vector<float> y(x.size() / static_cast<std::size_t>(in) * static_cast<std::size_t>(out));
    kernels::reference::matmul(x, at(weight), out, in, y);
    return y;
  }

  void attend(const std::string& prefix, std::vector<float>& h) const {
    const int dim = shape_.hidden / shape_.heads;
    std::vector<float> x(h.size());
    kernels::reference::rms_norm(h, at(prefix + "input_layernorm.weight"), kEps, x);
    auto q = multiply(x, prefix + "self_attn.q_proj.weight", shape_.hidden, shape_.hidden);
    auto k = multiply(x, prefix + "self_attn.k_proj.weight", shape_.kv_heads * dim, shape_.hidden);
    auto v = multiply(x, prefix + "self_attn.v_proj.weight", shape_.kv_heads * dim, shape_.hidden);
    kernels::reference::rms_norm(q, at(prefix + "self_attn.q_norm.weight"), kEps, q);
    kernels::reference::rms_norm(k, at(prefix + "self_attn.k_norm.weight"), kEps, k);
    const auto bound = static_cast<float>(shape_.clip);
    for (std::vector<float>* part : {&q, &k, &v}) {
      for (float& value : *part) value = value > bound ? bound : value < -bound ? -bound : value;
    }
    std::vector<std::int32_t> positions(h.size() / static_cast<std::size_t>(shape_.hidden));
    for (std::size_t t = 0; t < positions.size(); ++t) positions[t] = static_cast<std::int32_t>(t);
    kernels::reference::rope(q, shape_.heads, dim, positions, kernels::plain_rotary(dim, kTheta));
    kernels::reference::rope(k, shape_.kv_heads, dim, positions, kernels::plain_rotary(dim, kTheta));
    std::vector<float> out(q.size());
    const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
    kernels::reference::attention(q, k, v, {shape_.heads, shape_.kv_heads, dim, dim, scale, 0}, out);
    const auto projected = multiply(out, prefix + "self_attn.o_proj.weight", shape_.hidden, shape_.hidden);
    for (std::size_t i = 0; i < h.size(); ++i) h[i] += projected[i];
  }

  void feed_forward(const std::string& prefix, int layer, std::vector<float>& h, Answer& answer) const {
    const auto hidden = static_cast<std::size_t>(shape_.hidden);
    const auto top = static_cast<std::size_t>(shape_.top);
    std::vector<float> x(h.size());
    kernels::reference::rms_norm(h, at(prefix + "post_attention_layernorm.weight"), kEps, x);
    const auto logits = multiply(x, prefix + "mlp.gate.weight", shape_.experts, shape_.hidden);
    std::vector<std::uint16_t> ids(x.size() / hidden * top);
    std::vector<float> weights(ids.size());
    const kernels::GateRule rule{.experts = shape_.experts, .top = shape_.top, .normalise = shape_.normalise};
    kernels::reference::gate(logits, rule, {}, ids, weights);
    std::vector<float> y(hidden);
    for (std::size_t cell = 0; cell < ids.size(); ++cell) {
      const std::size_t token = cell / top;
      const std::string expert = prefix + "mlp.experts." + std::to_string(ids[cell]) + ".";
      kernels::reference::expert_ffn(std::span(x).subspan(token * hidden, hidden),
                                     at(expert + "gate_proj.weight"), at(expert + "up_proj.weight"),
                                     at(expert + "down_proj.weight"), shape_.hidden, shape_.ffn, y);
      for (std::size_t i = 0; i < hidden; ++i) h[token * hidden + i] += weights[cell] * y[i];
      const std::size_t to =
          (token * static_cast<std::size_t>(shape_.layers) + static_cast<std::size_t>(layer)) * top +
          cell % top;
      answer.ids[to] = ids[cell];
      answer.weights[to] = weights[cell];
    }
  }

  void add(Rng& rng, const std::string& name, std::vector<std::int64_t> shape, double scale,
           double middle = 0) {
    std::int64_t count = 1;
    for (const std::int64_t n : shape) count *= n;
    std::vector<float>& values = tensors_[name];
    for (std::int64_t i = 0; i < count; ++i)
      values.push_back(static_cast<float>(middle + (2 * rng.uniform() - 1) * scale));
    shapes_[name] = std::move(shape);
  }

  void make_tensors() {
    Rng rng(shape_.seed);
    const int kv = shape_.hidden / shape_.heads * shape_.kv_heads;
    const int h = shape_.hidden;
    add(rng, "model.embed_tokens.weight", {shape_.vocab, h}, 1);
    add(rng, "model.norm.weight", {h}, 0.3, 1);
    add(rng, "lm_head.weight", {shape_.vocab, h}, 0.5);
    for (int layer = 0; layer < shape_.layers; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      for (const char* name : {"input_layernorm.weight", "post_attention_layernorm.weight"})
        add(rng, prefix + name, {h}, 0.3, 1);
      add(rng, prefix + "self_attn.q_norm.weight", {h}, 0.3, 1);
      add(rng, prefix + "self_attn.k_norm.weight", {kv}, 0.3, 1);
      add(rng, prefix + "self_attn.q_proj.weight", {h, h}, 0.3);
      add(rng, prefix + "self_attn.k_proj.weight", {kv, h}, 0.3);
      add(rng, prefix + "self_attn.v_proj.weight", {kv, h}, 0.3);
      add(rng, prefix + "self_attn.o_proj.weight", {h, h}, 0.3);
      add(rng, prefix + "mlp.gate.weight", {shape_.experts, h}, shape_.zero_router ? 0 : 0.4);
      for (int e = 0; e < shape_.experts; ++e) {
        const std::string expert = prefix + "mlp.experts." + std::to_string(e) + ".";
        add(rng, expert + "gate_proj.weight", {shape_.ffn, h}, 0.4);
        add(rng, expert + "up_proj.weight", {shape_.ffn, h}, 0.4);
        add(rng, expert + "down_proj.weight", {h, shape_.ffn}, 0.4);
      }
    }
  }

  void write_folder() const {
    const Json config{{"architectures", {"OlmoeForCausalLM"}},
                      {"model_type", "olmoe"},
                      {"hidden_act", "silu"},
                      {"attention_bias", false},
                      {"hidden_size", shape_.hidden},
                      {"intermediate_size", shape_.ffn},
                      {"num_hidden_layers", shape_.layers},
                      {"num_attention_heads", shape_.heads},
                      {"num_key_value_heads", shape_.kv_heads},
                      {"num_experts", shape_.experts},
                      {"num_experts_per_tok", shape_.top},
                      {"norm_topk_prob", shape_.normalise},
                      {"vocab_size", shape_.vocab},
                      {"max_position_embeddings", shape_.max_positions},
                      {"rms_norm_eps", kEps},
                      {"rope_theta", kTheta},
                      {"clip_qkv", shape_.clip},
                      {"tie_word_embeddings", false},
                      {"eos_token_id", shape_.eos}};
    write_json(folder_ / "config.json", config).value();
    std::map<std::string, TensorView, std::less<>> views;
    for (const auto& [name, values] : tensors_)
      views[name] = {Dtype::kF32, shapes_.at(name), std::as_bytes(std::span(values))};
    write_safetensors(folder_ / "model.safetensors", views, {{"format", "pt"}}).value();
  }

  TinyShape shape_;
  std::filesystem::path folder_;
  std::map<std::string, std::vector<float>> tensors_;
  std::map<std::string, std::vector<std::int64_t>> shapes_;
};

}  // namespace grace
