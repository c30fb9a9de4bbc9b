#include <gmock/gmock.h>

#include <numeric>

#include "grace/model/model.h"
#include "grace/model/test_model.h"

namespace grace {
namespace {

const std::filesystem::path kFixtures = GRACE_SOURCE_DIR "/tests/fixtures/olmoe";
const std::vector<std::string> kNames = {"bf16_published", "f16_shards", "f32_own_head", "bf16_fused"};

std::vector<ExpertId> all_experts(int num_experts) {
  std::vector<ExpertId> experts;
  for (int expert = 0; expert < num_experts; ++expert) experts.emplace_back(expert);
  return experts;
}

struct Loaded {
  ModelConfig config;
  Checkpoint checkpoint;
};
Loaded open(const std::filesystem::path& folder) {
  return {read_model_config(folder).value(), Checkpoint::open(folder).value()};
}

std::vector<ExpertWeights> experts_of(const Loaded& model, int layer) {
  return load_experts(model.config, model.checkpoint, MoeOrdinal(layer),
                      all_experts(model.config.num_experts))
      .value();
}

std::string experts_error(const std::filesystem::path& folder) {
  const Loaded model = open(folder);
  const auto loaded =
      load_experts(model.config, model.checkpoint, MoeOrdinal(0), all_experts(model.config.num_experts));
  return loaded.ok() ? "ok" : loaded.error().message;
}

std::string dense_error(const std::filesystem::path& folder) {
  const Loaded model = open(folder);
  const auto loaded = load_dense(model.config, model.checkpoint);
  return loaded.ok() ? "ok" : loaded.error().message;
}

void expect_holds(const MatrixView& matrix, const TestTensor& tensor) {
  EXPECT_EQ((std::vector<std::int64_t>{matrix.rows, matrix.cols}), tensor.shape);
  EXPECT_EQ(values_of(matrix), tensor.values);
}

void expect_same_experts(const std::vector<ExpertWeights>& loaded, const TestModel& model, int layer) {
  for (const ExpertWeights& weights : loaded) {
    const int expert = weights.expert.value;
    SCOPED_TRACE("layer " + std::to_string(layer) + ", expert " + std::to_string(expert));
    expect_holds(weights.ffn.gate, model.tensors.at(TestModel::expert_name(layer, expert, "gate")));
    expect_holds(weights.ffn.up, model.tensors.at(TestModel::expert_name(layer, expert, "up")));
    expect_holds(weights.ffn.down, model.tensors.at(TestModel::expert_name(layer, expert, "down")));
  }
}

TEST(Weights, AreThoseOfTheFileTensorByTensor) {
  const TestModel model;
  const Loaded loaded = open(model.write("whole"));
  const DenseWeights dense = load_dense(loaded.config, loaded.checkpoint).value();
  expect_holds(dense.embedding, model.tensors.at("model.embed_tokens.weight"));
  expect_holds(dense.lm_head, model.tensors.at("lm_head.weight"));
  EXPECT_EQ(dense.final_norm, model.tensors.at("model.norm.weight").values);
  ASSERT_EQ(dense.layers.size(), 2U);
  for (int layer = 0; layer < 2; ++layer) {
    const LayerWeights& weights = dense.layers[static_cast<std::size_t>(layer)];
    const auto tensor = [&](const std::string& name) {
      return model.tensors.at(TestModel::prefix(layer) + name + ".weight");
    };
    EXPECT_EQ(weights.input_norm, tensor("input_layernorm").values);
    EXPECT_EQ(weights.post_attention_norm, tensor("post_attention_layernorm").values);
    EXPECT_EQ(weights.q_norm, tensor("self_attn.q_norm").values);
    EXPECT_EQ(weights.k_norm, tensor("self_attn.k_norm").values);
    expect_holds(weights.q, tensor("self_attn.q_proj"));
    expect_holds(weights.k, tensor("self_attn.k_proj"));
    expect_holds(weights.v, tensor("self_attn.v_proj"));
    expect_holds(weights.o, tensor("self_attn.o_proj"));
    expect_holds(weights.router, tensor("mlp.gate"));
    expect_same_experts(experts_of(loaded, layer), model, layer);
  }
}

TEST(Weights, AreTheSameInOneFileInShardsThatSplitAnExpertFusedAndTransposed) {
  const TestShape shapes[] = {{}, {.hidden = 12, .ffn = 6}, {.hidden = 8, .ffn = 5, .experts = 3}};
  for (const TestShape& shape : shapes) {
    const TestModel model(shape);
    SCOPED_TRACE("hidden " + std::to_string(shape.hidden));
    const Loaded sharded = open(model.write_shards("sharded", [](const std::string& name) -> std::string {
      return name.find("gate_proj") != std::string::npos ? "a"
             : name.find("up_proj") != std::string::npos ? "b"
                                                         : "c";
    }));
    TestModel fused_model = model;
    fused_model.fuse(false);
    const Loaded fused = open(fused_model.write("fused"));
    TestModel transposed_model = model;
    transposed_model.fuse(true);
    const Loaded transposed = open(transposed_model.write("transposed"));
    for (int layer = 0; layer < shape.layers; ++layer) {
      for (const Loaded* loaded : {&sharded, &fused, &transposed})
        expect_same_experts(experts_of(*loaded, layer), model, layer);
    }
  }
}

TEST(Weights, OfSquareFusedExpertsAreReadAsDocumentedAndRefusedWhenTransposed) {
  const TestModel model({.hidden = 8, .ffn = 8});
  TestModel fused = model;
  fused.fuse(false);
  expect_same_experts(experts_of(open(fused.write("square")), 1), model, 1);
  TestModel transposed = model;
  transposed.fuse(true);
  EXPECT_THAT(experts_error(transposed.write("square_transposed")),
              testing::EndsWith(
                  "tensor model.layers.0.mlp.experts.gate_up_proj is [5, 8, 16], which does not tell how "
                  "model.layers.0.mlp.experts.down_proj lies: it is square"));
}

// Converts by the definition of the type, element by element, straight from the file.
float element(const Checkpoint& checkpoint, const std::string& name, std::int64_t index) {
  const TensorView tensor = checkpoint.find(name).value();
  float value = 0;
  read_as_f32(tensor, name, index, index + 1, std::span(&value, 1)).value();
  return value;
}

TEST(Weights, OfTheFixturesAreThoseOfTheirFiles) {
  for (const std::string& name : kNames) {
    SCOPED_TRACE(name);
    const Loaded model = open(kFixtures / name);
    const ModelConfig& c = model.config;
    for (int layer = 0; layer < c.num_layers; ++layer) {
      for (const ExpertWeights& weights : experts_of(model, layer)) {
        const int e = weights.expert.value;
        const std::string p = TestModel::prefix(layer) + "mlp.experts.";
        const bool fused = model.checkpoint.has(p + "gate_up_proj");
        const auto gate = values_of(weights.ffn.gate), up = values_of(weights.ffn.up),
                   down = values_of(weights.ffn.down);
        const std::int64_t size = std::ssize(gate);
        for (std::int64_t i = 0; i < size; i += 7) {
          const auto at = static_cast<std::size_t>(i);
          const auto part = [&](const char* which) { return TestModel::expert_name(layer, e, which); };
          ASSERT_EQ(gate[at], fused ? element(model.checkpoint, p + "gate_up_proj", 2 * e * size + i)
                                    : element(model.checkpoint, part("gate"), i));
          ASSERT_EQ(up[at], fused ? element(model.checkpoint, p + "gate_up_proj", (2 * e + 1) * size + i)
                                  : element(model.checkpoint, part("up"), i));
          ASSERT_EQ(down[at], fused ? element(model.checkpoint, p + "down_proj", e * size + i)
                                    : element(model.checkpoint, part("down"), i));
        }
      }
    }
    const DenseWeights dense = load_dense(c, model.checkpoint).value();
    EXPECT_EQ(dense.embedding.rows, c.vocab_size);
    EXPECT_EQ(dense.lm_head.rows, name == "f16_shards" ? 0 : c.vocab_size);
    EXPECT_EQ(dense.layers.back().k_norm.size(), static_cast<std::size_t>(c.num_kv_heads * c.head_dim));
  }
}

TEST(ATiedHead, IsEmptyUnlessTheFileHasOneOfItsOwn) {
  TestModel model;
  model.config["tie_word_embeddings"] = true;
  const auto head_of = [](const std::filesystem::path& folder) {
    const Loaded loaded = open(folder);
    return values_of(load_dense(loaded.config, loaded.checkpoint).value().lm_head);
  };
  EXPECT_EQ(head_of(model.write("own_head")), model.tensors.at("lm_head.weight").values);
  model.tensors["lm_head.weight"] = model.tensors["model.embed_tokens.weight"];
  EXPECT_THAT(head_of(model.write("same_head")), testing::IsEmpty());
  model.tensors.erase("lm_head.weight");
  EXPECT_THAT(head_of(model.write("no_head")), testing::IsEmpty());
  model.config["tie_word_embeddings"] = false;
  EXPECT_THAT(dense_error(model.write("untied_no_head")), testing::EndsWith(": no tensor lm_head.weight"));
}

TEST(ARank, LoadsTheExpertsItAsksForInItsOrder) {
  const TestModel model({.experts = 60, .layers = 1});
  const Loaded loaded = open(model.write("sixty"));
  std::vector<ExpertId> second = all_experts(60);
  second.erase(second.begin(), second.begin() + 30);
  const std::vector<std::vector<ExpertId>> wishes = {second, {ExpertId(3), ExpertId(0), ExpertId(3)}, {}};
  for (const std::vector<ExpertId>& wish : wishes) {
    const auto experts = load_experts(loaded.config, loaded.checkpoint, MoeOrdinal(0), wish).value();
    ASSERT_EQ(experts.size(), wish.size());
    for (std::size_t i = 0; i < wish.size(); ++i) EXPECT_EQ(experts[i].expert, wish[i]);
    expect_same_experts(experts, model, 0);
  }
}

// Cutting a shard off after it was opened makes any touch of it fatal: SIGBUS.
TEST(ARankDeathTest, TouchesNoBytesOfOtherRanksExperts) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const TestModel model;
  const auto folder = model.write_shards("hosted", [](const std::string& name) -> std::string {
    for (const char* mine : {".experts.1.", ".experts.4."}) {
      if (name.find(mine) != std::string::npos) return "mine.safetensors";
    }
    return "others.safetensors";
  });
  const Loaded loaded = open(folder);
  std::filesystem::resize_file(folder / "others.safetensors", 0);
  const std::vector<ExpertId> mine = {ExpertId(1), ExpertId(4)};
  for (int layer : {0, 1}) {
    expect_same_experts(load_experts(loaded.config, loaded.checkpoint, MoeOrdinal(layer), mine).value(),
                        model, layer);
  }
  const std::vector<ExpertId> other = {ExpertId(2)};
  // By SIGBUS, or by the sanitizer that reports it.
  EXPECT_DEATH(expect_same_experts(
                   load_experts(loaded.config, loaded.checkpoint, MoeOrdinal(0), other).value(), model, 0),
               "")
      << "the trap must be live";
}

TEST(ARow, IsWidenedWhateverItIsStoredAs) {
  for (const std::string& name : kNames) {
    SCOPED_TRACE(name);
    const Loaded model = open(kFixtures / name);
    const MatrixView embedding = load_dense(model.config, model.checkpoint).value().embedding;
    const std::vector<float> all = values_of(embedding);
    std::vector<float> row(static_cast<std::size_t>(embedding.cols));
    for (const int r : {0, 5, embedding.rows - 1}) {
      read_row(embedding, r, row);
      EXPECT_TRUE(std::ranges::equal(
          row, std::span(all).subspan(static_cast<std::size_t>(r) * row.size(), row.size())));
    }
  }
}

TEST(AWeight, IsTheSameAfterItsMemoryWasGivenBack) {
  TestModel model;
  model.fuse(true);
  const Loaded loaded = open(model.write("given_back"));
  const DenseWeights dense = load_dense(loaded.config, loaded.checkpoint).value();
  loaded.checkpoint.give_back(dense.embedding);
  expect_holds(dense.embedding, model.tensors.at("model.embed_tokens.weight"));
  for (const ExpertWeights& expert : experts_of(loaded, 1)) {
    const std::vector<float> before = values_of(expert.ffn.up);
    loaded.checkpoint.give_back(expert.ffn.up);
    EXPECT_EQ(values_of(expert.ffn.up), before);
  }
  loaded.checkpoint.give_back(MatrixView());
}

TEST(ABadCheckpoint, NamesTheTensorThatIsMissingOrMisshapen) {
  TestModel model;
  const std::string down = TestModel::expert_name(0, 3, "down");
  const TestTensor tensor = model.take(down);
  EXPECT_THAT(experts_error(model.write("missing")), testing::EndsWith("/missing: no tensor " + down));
  model.tensors[down] = {{6, 8}, tensor.values};
  EXPECT_THAT(experts_error(model.write("misshapen")),
              testing::EndsWith(": tensor " + down + " is [6, 8], expected [8, 6]"));
  model.tensors[down] = tensor;
  model.tensors["model.norm.weight"] = {{4}, std::vector<float>(4)};
  EXPECT_THAT(dense_error(model.write("norm")),
              testing::EndsWith(": tensor model.norm.weight is [4], expected [8]"));
  model.fuse(false);
  model.tensors.erase("model.layers.0.mlp.experts.gate_up_proj");
  EXPECT_THAT(experts_error(model.write("half_fused")),
              testing::EndsWith(": no tensor model.layers.0.mlp.experts.gate_up_proj"));
}

TEST(ABadCheckpoint, IsRefusedWhenItIsOpened) {
  const auto message = [](const std::filesystem::path& folder) {
    const auto opened = Checkpoint::open(folder);
    return opened.ok() ? "ok" : opened.error().message;
  };
  const auto folder = TestModel().write("broken");
  const auto file = folder / "model.safetensors";
  const auto size = std::filesystem::file_size(file);
  std::filesystem::resize_file(file, size - 1);
  EXPECT_THAT(message(folder), testing::HasSubstr("are outside [0, "));
  std::filesystem::resize_file(file, 100);
  EXPECT_THAT(message(folder), testing::HasSubstr("the header says it is"));
  std::filesystem::remove(file);
  EXPECT_EQ(message(folder),
            folder.string() + ": has neither model.safetensors nor model.safetensors.index.json");
  const auto index = folder / "model.safetensors.index.json";
  const auto with_index = [&](const Json& json) {
    write_json(index, json).value();
    return message(folder).substr(folder.string().size() + 1);
  };
  EXPECT_EQ(with_index({1}), "model.safetensors.index.json: weight_map is missing");
  EXPECT_EQ(with_index({{"weight_map", {{"t", "../x"}}}}),
            "model.safetensors.index.json: tensor \"t\" is in \"../x\", not a file's name");
  EXPECT_EQ(with_index({{"weight_map", {{"t", "x"}}}}), "x: No such file or directory");
  write_safetensors(folder / "x", {}, {}).value();
  EXPECT_EQ(with_index({{"weight_map", {{"t", "x"}}}}),
            "model.safetensors.index.json: tensor \"t\" is not in x");
}

}  // namespace
}  // namespace grace
