#include "grace/model/shape.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "grace/files/json_file.h"
#include "grace/files/mapped_file.h"

namespace grace {
namespace {

using testing::HasSubstr;

const std::filesystem::path kConfigs = GRACE_SOURCE_DIR "/../shared/data/configs";

Json small_config() {
  return {{"hidden_size", 12},          {"num_hidden_layers", 4}, {"vocab_size", 50},
          {"num_attention_heads", 3},   {"num_experts", 5},       {"num_experts_per_tok", 2},
          {"moe_intermediate_size", 7}, {"intermediate_size", 9}};
}

ModelShape shape_of(const Json& config) { return parse_shape(config.dump(), "c").value(); }

std::string message_with(const std::string& key, const Json& value) {
  Json config = small_config();
  config[key] = value;
  const auto shape = parse_shape(config.dump(), "c");
  return shape.ok() ? "ok" : shape.error().message;
}

// Published figures, in 1e9: all, and what a token uses.
struct Published {
  const char* name;
  double total, active;
};
class AKnownShape : public testing::TestWithParam<Published> {};

TEST_P(AKnownShape, HasThePublishedNumberOfParameters) {
  const ModelShape shape = known_shape(GetParam().name).value();
  EXPECT_EQ(shape.name, GetParam().name);
  EXPECT_NEAR(total_parameters(shape) / 1e9, GetParam().total, 0.006 * GetParam().total);
  EXPECT_NEAR(active_parameters(shape) / 1e9, GetParam().active, 0.02 * GetParam().active);
}
// gpt-oss counts its active parameters without the embedding, whose 0.58 stand here on top.
INSTANTIATE_TEST_SUITE_P(
    Models, AKnownShape,
    testing::Values(Published{"olmoe", 6.92, 1.28}, Published{"deepseek-v2-lite", 15.7, 2.66},
                    Published{"qwen3-30b-a3b", 30.5, 3.35}, Published{"deepseek-v3", 671, 37.5},
                    Published{"gpt-oss-20b", 20.9, 4.19}, Published{"mixtral-8x7b", 46.7, 12.9},
                    Published{"demo", 10.4e-3, 2.15e-3}));

TEST(AShape, OfARealConfigIsTheOneBuiltIn) {
  if (!std::filesystem::exists(kConfigs)) GTEST_SKIP() << kConfigs << " is not there";
  for (const auto& [file, name] :
       {std::pair{"olmoe", "olmoe"}, std::pair{"deepseek2", "deepseek-v2-lite"},
        std::pair{"qwen3", "qwen3-30b-a3b"}, std::pair{"mixtral", "mixtral-8x7b"}}) {
    SCOPED_TRACE(file);
    ModelShape shape = find_shape((kConfigs / (std::string(file) + ".config.json")).string()).value();
    EXPECT_EQ(shape.name, std::string(file) + ".config");
    shape.name = name;
    EXPECT_EQ(shape, known_shape(name).value());
  }
}

TEST(AShape, OfTheShippedModelIsTheOneBuiltIn) {
  ModelShape shape = find_shape(GRACE_SOURCE_DIR "/models/demo").value();
  EXPECT_EQ(shape.name, "demo");
  EXPECT_EQ(shape, known_shape("demo").value());
}

TEST(AShape, IsReadFromEveryRealConfig) {
  if (!std::filesystem::exists(kConfigs)) GTEST_SKIP() << kConfigs << " is not there";
  const auto read = [](const char* file) { return find_shape((kConfigs / file).string()).value(); };
  const ModelShape qwen2 = read("qwen2.config.json");
  EXPECT_EQ(qwen2.shared_expert_ffn, 20480);
  EXPECT_EQ(qwen2.expert_ffn, 2560);
  EXPECT_EQ(qwen2.dense_ffn, 0);
  EXPECT_EQ(qwen2.window, 0) << "it is switched off";
  EXPECT_NEAR(total_parameters(qwen2) / 1e9, 57.4, 0.3);
  const ModelShape deepseek = read("deepseek.config.json");
  EXPECT_EQ(deepseek.attention, AttentionKind::kGrouped);
  EXPECT_NEAR(total_parameters(deepseek) / 1e9, 16.4, 0.1);
  const ModelShape ocr = read("deepseek-ocr2.config.json");
  EXPECT_EQ(ocr.attention, AttentionKind::kGrouped) << "its kv_lora_rank is null";
  EXPECT_EQ(ocr.head_dim, 128);
  EXPECT_EQ(ocr.shared_expert_ffn, 2 * 896);
  EXPECT_EQ(ocr.moe_layers.size(), 11U);
  EXPECT_NEAR(total_parameters(read("mixtral-8x22b-WizardLM2.config.json")) / 1e9, 140.6, 0.5);
}

TEST(AShape, IsFoundByTheNamesPeopleUse) {
  for (const auto& [asked, name] :
       {std::pair{"OLMoE-1B-7B-0125", "olmoe"}, std::pair{"allenai/OLMoE-1B-7B-0924-Instruct", "olmoe"},
        std::pair{"Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"},
        std::pair{"DeepSeek_V2_Lite_Chat", "deepseek-v2-lite"},
        std::pair{"deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"},
        std::pair{"openai/gpt-oss-20b", "gpt-oss-20b"},
        std::pair{"mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"}, std::pair{"Demo", "demo"},
        std::pair{"Qwen3-Coder-30B-A3B-Instruct", "qwen3-30b-a3b"}})
    EXPECT_EQ(find_shape(asked).value().name, name) << asked;
  for (const char* asked : {"", "deepseek-v2", "demonstration", "gpt-oss-120b", "mixtral-8x22b"})
    EXPECT_FALSE(known_shape(asked)) << asked;
}

TEST(AShape, ThatIsNotThereNamesTheKnown) {
  EXPECT_EQ(find_shape("nosuch").error().message,
            "shape \"nosuch\" is none of olmoe, deepseek-v2-lite, qwen3-30b-a3b, deepseek-v3, gpt-oss-20b, "
            "mixtral-8x7b, demo, and no config.json or folder with one");
  EXPECT_FALSE(find_shape("").ok());
  EXPECT_THAT(find_shape(GRACE_SOURCE_DIR).error().message, HasSubstr("config.json"));
}

TEST(AShape, KnowsWhichLayersAreMoe) {
  using testing::ElementsAre;
  Json config = small_config();
  EXPECT_THAT(shape_of(config).moe_layers, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(shape_of(config).dense_ffn, 0) << "no layer is dense";
  config["first_k_dense_replace"] = 1;
  EXPECT_THAT(shape_of(config).moe_layers, ElementsAre(1, 2, 3));
  EXPECT_EQ(shape_of(config).dense_ffn, 9);
  config["moe_layer_freq"] = 2;
  EXPECT_THAT(shape_of(config).moe_layers, ElementsAre(2));
  config = small_config();
  config["decoder_sparse_step"] = 2;
  EXPECT_THAT(shape_of(config).moe_layers, ElementsAre(1, 3));
  config["mlp_only_layers"] = {3};
  EXPECT_THAT(shape_of(config).moe_layers, ElementsAre(1));
  EXPECT_TRUE(shape_of(config).is_moe(1));
  EXPECT_FALSE(shape_of(config).is_moe(3));
  config["mlp_only_layers"] = {1, 3};
  EXPECT_EQ(parse_shape(config.dump(), "c").error().message, "c: none of 4 layers is MoE");
}

TEST(AShape, KnowsWhichLayersAreWindowed) {
  using testing::ElementsAre;
  using testing::IsEmpty;
  Json config = small_config();
  config["sliding_window"] = 8;
  EXPECT_THAT(shape_of(config).windowed_layers, ElementsAre(0, 1, 2, 3));
  config["use_sliding_window"] = false;
  EXPECT_THAT(shape_of(config).windowed_layers, IsEmpty());
  config["use_sliding_window"] = true;
  config["max_window_layers"] = 3;
  EXPECT_THAT(shape_of(config).windowed_layers, ElementsAre(3));
  config.erase("max_window_layers");
  config["model_type"] = "gpt_oss";
  EXPECT_THAT(shape_of(config).windowed_layers, ElementsAre(0, 2));
  config["layer_types"] = {"full_attention", "sliding_attention", "full_attention", "full_attention"};
  EXPECT_THAT(shape_of(config).windowed_layers, ElementsAre(1));
}

TEST(AShape, TakesAGptOssConfigAsPublished) {
  Json config = {{"architectures", {"GptOssForCausalLM"}},
                 {"model_type", "gpt_oss"},
                 {"hidden_size", 2880},
                 {"intermediate_size", 2880},
                 {"num_hidden_layers", 24},
                 {"num_attention_heads", 64},
                 {"num_key_value_heads", 8},
                 {"head_dim", 64},
                 {"num_local_experts", 32},
                 {"experts_per_token", 4},
                 {"num_experts_per_tok", 4},
                 {"sliding_window", 128},
                 {"tie_word_embeddings", false},
                 {"vocab_size", 201088}};
  ModelShape shape = shape_of(config);
  shape.name = "gpt-oss-20b";
  EXPECT_EQ(shape, known_shape("gpt-oss-20b").value());
  EXPECT_EQ(shape_of({{"model_type", "x"}, {"text_config", config}}).num_experts, 32)
      << "inside a larger model";
}

TEST(AShape, RefusesWhatNoModelIs) {
  EXPECT_EQ(message_with("hidden_size", nullptr), "c: hidden_size is missing");
  EXPECT_EQ(
      message_with("num_experts", nullptr),
      "c: none of num_experts, num_local_experts and n_routed_experts is set: no Mixture-of-Experts model");
  EXPECT_THAT(message_with("num_experts_per_tok", 6), HasSubstr("num_experts_per_tok"));
  EXPECT_THAT(message_with("num_key_value_heads", 2), HasSubstr("3 is no multiple of num_key_value_heads 2"));
  EXPECT_THAT(message_with("num_attention_heads", 5), HasSubstr("hidden_size 12 is no multiple"));
  EXPECT_THAT(message_with("mlp_only_layers", {4}), HasSubstr("mlp_only_layers"));
  EXPECT_THAT(message_with("mlp_only_layers", 1), HasSubstr("not a list"));
  EXPECT_THAT(message_with("n_shared_experts", 1 << 23), HasSubstr("shared experts"));
  EXPECT_THAT(message_with("kv_lora_rank", 4), HasSubstr("qk_nope_head_dim is missing"));
  EXPECT_EQ(parse_shape("[]", "c").error().message, "c: [] is not an object");
  Json windowed = small_config();
  windowed["sliding_window"] = 8;
  windowed["layer_types"] = {"full_attention"};
  EXPECT_THAT(parse_shape(windowed.dump(), "c").error().message, HasSubstr("not a list of 4 names"));
}

TEST(AShape, AnswersForEveryFileOfTheCorpus) {
  for (const auto& entry : std::filesystem::directory_iterator(GRACE_SOURCE_DIR "/fuzz/corpus/shape")) {
    SCOPED_TRACE(entry.path());
    const auto shape = parse_shape(read_text(entry.path()).value(), "file");
    EXPECT_EQ(shape.ok(), entry.path().filename().string().starts_with("good"));
    if (!shape.ok()) {
      EXPECT_THAT(shape.error().message, testing::Not(HasSubstr("\n")));
    }
  }
}

TEST(AttentionCost, OfHeadsIsCountedMatrixByMatrix) {
  const ModelShape shape = known_shape("qwen3-30b-a3b").value();
  const double q = 2048.0 * 4096, k = 2048.0 * 512, v = k, o = q;
  const PartCost prefill = attention_cost(shape, Pass::kPrefill, 100);
  EXPECT_EQ(prefill.parameters, q + k + v + o);
  EXPECT_EQ(prefill.flops, 2 * (q + k + v + o) + 2 * 32 * 128 * 100.0 * 2);
  EXPECT_EQ(prefill.cache_values, 0);
  const PartCost decode = attention_cost(shape, Pass::kDecode, 100);
  EXPECT_EQ(decode.flops, prefill.flops);
  EXPECT_EQ(decode.cache_values, 2 * 4 * 128 * 100.0);
}

TEST(AttentionCost, OfLatentsReadsOneVectorAKeyInDecode) {
  const ModelShape shape = known_shape("deepseek-v3").value();
  const PartCost decode = attention_cost(shape, Pass::kDecode, 10);
  EXPECT_EQ(decode.parameters,
            7168.0 * 1536 + 1536.0 * 128 * 192 + 7168.0 * 576 + 512.0 * 128 * 256 + 128.0 * 128 * 7168);
  EXPECT_EQ(decode.cache_values, 576 * 10.0);
  EXPECT_EQ(decode.flops - 2 * decode.parameters, 2 * 128 * (576 + 512) * 10.0);
  EXPECT_EQ(attention_cost(shape, Pass::kPrefill, 10).flops - 2 * decode.parameters,
            2 * 128 * (192 + 128) * 10.0);
}

TEST(PartCosts, AreThoseOfTheirMatrices) {
  const ModelShape shape = known_shape("deepseek-v2-lite").value();
  EXPECT_EQ(dense_ffn_cost(shape).parameters, 3.0 * 2048 * 10944);
  EXPECT_EQ(shared_experts_cost(shape).flops, 2 * 3.0 * 2048 * 2816);
  EXPECT_EQ(router_cost(shape).parameters, 2048.0 * 64);
  EXPECT_EQ(lm_head_cost(shape).parameters, 2048.0 * 102400);
  EXPECT_EQ(expert_cost(shape).parameters, 3.0 * 2048 * 1408);
  EXPECT_EQ(shared_experts_cost(known_shape("olmoe").value()).parameters, 0);
  PartCost sum = router_cost(shape);
  sum += lm_head_cost(shape);
  EXPECT_EQ(sum.parameters, 2048.0 * (64 + 102400));
}

}  // namespace
}  // namespace grace
