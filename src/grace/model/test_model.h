// Random OLMoE folders for tests: tensors that can be changed, renamed or removed before they are written.
#pragma once

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "grace/base/matrix_view.h"
#include "grace/base/rng.h"
#include "grace/files/json_file.h"
#include "grace/files/mapped_file.h"
#include "grace/files/safetensors.h"

namespace grace {

// A folder of this process's own, gone when it ends.
class TestRoom {
 public:
  TestRoom()
      : path_(std::filesystem::temp_directory_path() / ("grace_model_test." + std::to_string(::getpid()))) {}
  TestRoom(const TestRoom&) = delete;
  TestRoom& operator=(const TestRoom&) = delete;
  ~TestRoom() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  static const std::filesystem::path& path() {
    static const TestRoom room;
    return room.path_;
  }

 private:
  std::filesystem::path path_;
};

struct TestTensor {
  std::vector<std::int64_t> shape;
  std::vector<float> values;  // row-major

  std::int64_t num_elements() const { return std::ssize(values); }
};

// Row-major, element by element.
inline std::vector<float> values_of(const MatrixView& weight) {
  std::vector<float> values;
  for (std::int64_t row = 0; row < weight.rows; ++row) {
    for (std::int64_t col = 0; col < weight.cols; ++col) {
      const std::int64_t at = weight.transposed ? col * weight.stride + row : row * weight.stride + col;
      const std::byte* from = weight.data + at * static_cast<std::int64_t>(bytes_of(weight.element));
      std::uint16_t half = 0;
      float whole = 0;
      std::memcpy(&half, from, sizeof(half));
      if (weight.element == Element::kF32) std::memcpy(&whole, from, sizeof(whole));
      values.push_back(weight.element == Element::kF32    ? whole
                       : weight.element == Element::kBf16 ? f32_of_bf16(half)
                                                          : f32_of_f16(half));
    }
  }
  return values;
}

struct TestShape {
  int hidden = 8, ffn = 6, experts = 5, layers = 2, heads = 2, kv_heads = 1, vocab = 11;
};

class TestModel {
 public:
  Json config;
  std::map<std::string, TestTensor> tensors;

  explicit TestModel(TestShape shape = {}, std::uint64_t seed = 1) : shape_(shape), rng_(seed) {
    config = {{"architectures", {"OlmoeForCausalLM"}},
              {"hidden_size", shape.hidden},
              {"intermediate_size", shape.ffn},
              {"num_experts", shape.experts},
              {"num_experts_per_tok", 2},
              {"num_hidden_layers", shape.layers},
              {"num_attention_heads", shape.heads},
              {"num_key_value_heads", shape.kv_heads},
              {"vocab_size", shape.vocab}};
    const int kv = shape.hidden / shape.heads * shape.kv_heads;
    add("model.embed_tokens.weight", {shape.vocab, shape.hidden});
    add("lm_head.weight", {shape.vocab, shape.hidden});
    add("model.norm.weight", {shape.hidden});
    for (int layer = 0; layer < shape.layers; ++layer) {
      const std::string p = prefix(layer);
      for (const char* name : {"input_layernorm", "post_attention_layernorm", "self_attn.q_norm"}) {
        add(p + name + ".weight", {shape.hidden});
      }
      add(p + "self_attn.k_norm.weight", {kv});
      for (const char* name : {"q", "o"})
        add(p + "self_attn." + name + "_proj.weight", {shape.hidden, shape.hidden});
      for (const char* name : {"k", "v"}) add(p + "self_attn." + name + "_proj.weight", {kv, shape.hidden});
      add(p + "mlp.gate.weight", {shape.experts, shape.hidden});
      for (int expert = 0; expert < shape.experts; ++expert) {
        add(expert_name(layer, expert, "gate"), {shape.ffn, shape.hidden});
        add(expert_name(layer, expert, "up"), {shape.ffn, shape.hidden});
        add(expert_name(layer, expert, "down"), {shape.hidden, shape.ffn});
      }
    }
  }

  static std::string prefix(int layer) { return "model.layers." + std::to_string(layer) + "."; }
  static std::string expert_name(int layer, int expert, const std::string& part) {
    return prefix(layer) + "mlp.experts." + std::to_string(expert) + "." + part + "_proj.weight";
  }

  // Replaces each layer's experts by gate_up_proj and down_proj; transposed: [E, H, 2F] and [E, F, H].
  void fuse(bool transposed) {
    for (int layer = 0; layer < shape_.layers; ++layer) {
      TestTensor gate_up{{shape_.experts, 2 * shape_.ffn, shape_.hidden}, {}};
      TestTensor down{{shape_.experts, shape_.hidden, shape_.ffn}, {}};
      if (transposed) {
        std::swap(gate_up.shape[1], gate_up.shape[2]);
        std::swap(down.shape[1], down.shape[2]);
      }
      for (int expert = 0; expert < shape_.experts; ++expert) {
        std::vector<float> both = take(expert_name(layer, expert, "gate")).values;
        const std::vector<float> up = take(expert_name(layer, expert, "up")).values;
        both.insert(both.end(), up.begin(), up.end());
        append(gate_up, both, 2 * shape_.ffn, shape_.hidden, transposed);
        append(down, take(expert_name(layer, expert, "down")).values, shape_.hidden, shape_.ffn, transposed);
      }
      tensors[prefix(layer) + "mlp.experts.gate_up_proj"] = std::move(gate_up);
      tensors[prefix(layer) + "mlp.experts.down_proj"] = std::move(down);
    }
  }

  TestTensor take(const std::string& name) {
    TestTensor tensor = std::move(tensors.at(name));
    tensors.erase(name);
    return tensor;
  }

  // A fresh folder with config.json and one file of weights.
  std::filesystem::path write(const std::string& name) const {
    const std::filesystem::path folder = write_config(name);
    write_weights(folder / "model.safetensors", [](const std::string&) { return true; }).value();
    return folder;
  }

  // The same with a shard per value of shard_of(tensor name), and the index.
  template <typename ShardOf>
  std::filesystem::path write_shards(const std::string& name, ShardOf shard_of) const {
    const std::filesystem::path folder = write_config(name);
    Json map = Json::object();
    std::map<std::string, int> shards;
    for (const auto& [tensor, unused] : tensors) {
      map[tensor] = shard_of(tensor);
      shards[shard_of(tensor)] += 1;
    }
    for (const auto& [shard, unused] : shards) {
      write_weights(folder / shard, [&](const std::string& tensor) {
        return shard_of(tensor) == shard;
      }).value();
    }
    write_json(folder / "model.safetensors.index.json", {{"weight_map", map}}).value();
    return folder;
  }

 private:
  void add(const std::string& name, std::vector<std::int64_t> shape) {
    std::int64_t size = 1;
    for (const std::int64_t extent : shape) size *= extent;
    TestTensor tensor{std::move(shape), std::vector<float>(static_cast<std::size_t>(size))};
    for (float& value : tensor.values) value = static_cast<float>(rng_.uniform() - 0.5);
    tensors[name] = std::move(tensor);
  }
  static void append(TestTensor& tensor, const std::vector<float>& matrix, int rows, int cols,
                     bool transposed) {
    for (int i = 0; i < rows * cols; ++i) {
      const int from = transposed ? i % rows * cols + i / rows : i;
      tensor.values.push_back(matrix[static_cast<std::size_t>(from)]);
    }
  }
  std::filesystem::path write_config(const std::string& name) const {
    const std::filesystem::path folder = TestRoom::path() / name;
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    write_json(folder / "config.json", config).value();
    return folder;
  }
  template <typename Keep>
  Status write_weights(const std::filesystem::path& path, Keep keep) const {
    TensorMap views;
    for (const auto& [name, tensor] : tensors) {
      if (keep(name)) views[name] = {Dtype::kF32, tensor.shape, std::as_bytes(std::span(tensor.values))};
    }
    return write_safetensors(path, views, {{"format", "pt"}});
  }

  TestShape shape_;
  Rng rng_;
};

}  // namespace grace
