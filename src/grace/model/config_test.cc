#include <gmock/gmock.h>

#include "grace/model/model.h"
#include "grace/model/test_model.h"

namespace grace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::filesystem::path kFixtures = GRACE_SOURCE_DIR "/tests/fixtures/olmoe";

const std::string kKnown =
    "OlmoeForCausalLM, DeepseekV2ForCausalLM, DeepseekV3ForCausalLM, Qwen3MoeForCausalLM, "
    "Qwen2MoeForCausalLM, "
    "MixtralForCausalLM";

// What the test model's config reads as, with one key changed.
std::string message_with(const std::string& key, const Json& value) {
  Json config = TestModel().config;
  config[key] = value;
  const auto read = parse_model_config(config.dump(), "config.json");
  return read.ok() ? "ok" : read.error().message;
}

TEST(AConfig, IsReadInThePublishedSpelling) {
  const ModelConfig config = read_model_config(kFixtures / "bf16_published").value();
  EXPECT_EQ(config.architecture, "OlmoeForCausalLM");
  EXPECT_EQ(config.name, "bf16_published");
  EXPECT_EQ(config.hidden_size, 36);
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.num_heads, 3);
  EXPECT_EQ(config.num_kv_heads, 3);
  EXPECT_EQ(config.head_dim, 12);
  EXPECT_EQ(config.vocab_size, 97);
  EXPECT_EQ(config.num_experts, 5);
  EXPECT_EQ(config.experts_per_token, 2);
  EXPECT_EQ(config.expert_ffn_size, 20);
  EXPECT_FALSE(config.norm_topk_prob);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.rope.theta, 10000);
  EXPECT_EQ(config.clip_qkv, std::nullopt);
  EXPECT_EQ(config.max_positions, 64);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(96));
  EXPECT_THAT(config.moe_layers, ElementsAre(0, 1));
}

TEST(AConfig, IsReadAsTransformersFiveSpellsIt) {
  const ModelConfig config = read_model_config(kFixtures / "f16_shards").value();
  EXPECT_EQ(config.rope.theta, 500);
  EXPECT_EQ(config.clip_qkv, 0.8);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_TRUE(config.norm_topk_prob);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(3, 100, 7)) << "of both files, each once";
  EXPECT_EQ(read_model_config(kFixtures / "bf16_fused").value().rms_norm_eps, 1e-6);
  EXPECT_THAT(read_model_config(kFixtures / "f32_own_head").value().eos_token_ids, IsEmpty());
}

TEST(AConfig, OfTheRealModelIsRead) {
  const std::filesystem::path path = GRACE_SOURCE_DIR "/../shared/data/configs/olmoe.config.json";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  const ModelConfig config = parse_model_config(read_text(path).value(), "x").value();
  EXPECT_EQ(config.num_experts, 64);
  EXPECT_EQ(config.experts_per_token, 8);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.moe_layers.size(), 16U);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(50279));
}

TEST(AConfig, MayNameItsArchitectureOrItsTypeOnly) {
  Json config = TestModel().config;
  config.erase("architectures");
  EXPECT_EQ(parse_model_config(config.dump(), "c").error().message, "c: model_type is missing");
  config["model_type"] = "olmoe";
  EXPECT_TRUE(parse_model_config(config.dump(), "c").ok());
  config["model_type"] = "llama";
  EXPECT_EQ(parse_model_config(config.dump(), "c").error().message,
            "c: architecture \"llama\" is not one of " + kKnown);
  EXPECT_EQ(message_with("architectures", {"LlamaForCausalLM"}),
            "config.json: architecture \"LlamaForCausalLM\" is not one of " + kKnown);
  EXPECT_EQ(message_with("architectures", Json::array()),
            "config.json: architectures is [], not a list of names");
}

TEST(AConfig, CallsItsExpertsByEitherName) {
  Json config = TestModel().config;
  config.erase("num_experts");
  config["num_local_experts"] = 4;
  EXPECT_EQ(parse_model_config(config.dump(), "c").value().num_experts, 4);
}

TEST(AConfig, TakesEndOfTextAsANumberAListOrNothing) {
  EXPECT_EQ(message_with("eos_token_id", 3), "ok");
  EXPECT_EQ(message_with("eos_token_id", nullptr), "ok");
  EXPECT_EQ(message_with("eos_token_id", {3, 3, 4}), "ok");
  EXPECT_EQ(message_with("eos_token_id", {3, -1}),
            "config.json: eos_token_id is -1, outside [0, 2147483647]");
  EXPECT_EQ(message_with("eos_token_id", "x"), "config.json: eos_token_id is \"x\", not a whole number");
}

TEST(AConfig, IsRefusedWithWhatIsWrongWithIt) {
  EXPECT_EQ(message_with("num_experts", nullptr), "config.json: num_experts is missing");
  EXPECT_EQ(message_with("num_experts", 0), "config.json: num_experts is 0, outside [1, 32768]");
  EXPECT_EQ(message_with("num_experts_per_tok", 6), "config.json: num_experts_per_tok is 6, outside [1, 5]");
  EXPECT_EQ(message_with("hidden_size", 8.5), "config.json: hidden_size is 8.5, not a whole number");
  EXPECT_EQ(message_with("hidden_size", 1e30), "config.json: hidden_size is 1e+30, not a whole number");
  EXPECT_EQ(message_with("hidden_size", 7),
            "config.json: num_attention_heads is 2, no divisor of hidden_size 7");
  EXPECT_EQ(message_with("hidden_size", 6), "config.json: head_dim is 3, not even");
  EXPECT_EQ(message_with("head_dim", 16),
            "config.json: head_dim is 16, not hidden_size / num_attention_heads = 4");
  EXPECT_EQ(message_with("num_key_value_heads", 3),
            "config.json: num_key_value_heads is 3, no divisor of num_attention_heads 2");
  EXPECT_EQ(message_with("rms_norm_eps", 0), "config.json: rms_norm_eps is 0, not above 0");
  EXPECT_EQ(message_with("clip_qkv", -1), "config.json: clip_qkv is -1, not above 0");
  EXPECT_EQ(message_with("tie_word_embeddings", 1),
            "config.json: tie_word_embeddings is 1, not true or false");
  EXPECT_EQ(parse_model_config("[]", "c").error().message, "c: [] is not an object");
  EXPECT_THAT(parse_model_config("{", "c").error().message, HasSubstr("c: not JSON at byte"));
}

TEST(AConfig, IsRefusedWhereItAsksForMoreThanIsThere) {
  EXPECT_EQ(message_with("hidden_act", "gelu"),
            "config.json: hidden_act is \"gelu\", only \"silu\" is supported");
  EXPECT_EQ(message_with("attention_bias", true),
            "config.json: attention_bias is true, only false is supported");
  EXPECT_EQ(message_with("attention_bias", false), "ok");
  EXPECT_EQ(message_with("sliding_window", 0), "ok");
  EXPECT_EQ(message_with("rope_scaling", {{"type", "yarn"}, {"factor", 4}}), "ok");
  EXPECT_EQ(message_with("rope_scaling", {{"type", "yarn"}}), "config.json: rope_scaling: factor is missing");
  EXPECT_EQ(message_with("rope_parameters", {{"rope_type", "linear"}, {"rope_theta", 3}}),
            "config.json: rope_parameters: rope_type is \"linear\", not one of default, yarn");
  EXPECT_EQ(message_with("rope_parameters", 3), "config.json: rope_parameters is 3, not an object");
}

TEST(AConfig, OfTheCorpusIsAcceptedOnlyWhenItsNameSaysSo) {
  int seen = 0;
  for (const auto& file : std::filesystem::directory_iterator(GRACE_SOURCE_DIR "/fuzz/corpus/model_config")) {
    ++seen;
    const bool good = file.path().filename().string().starts_with("good");
    const auto config = parse_model_config(read_text(file.path()).value(), "x");
    EXPECT_EQ(config.ok(), good) << file.path() << (config.ok() ? "" : config.error().message);
    if (!config.ok()) {
      EXPECT_THAT(config.error().message, testing::Not(HasSubstr("\n")));
    }
  }
  EXPECT_GE(seen, 5);
}

TEST(AConfig, SurvivesAnyValueInAnyField) {
  const std::vector<Json> values = {nullptr,
                                    true,
                                    -1,
                                    0,
                                    1,
                                    2.5,
                                    1e300,
                                    UINT64_MAX,
                                    "",
                                    "x",
                                    Json::array(),
                                    {1, 2},
                                    Json::object(),
                                    {{"rope_theta", -1}}};
  std::vector<Json> configs = {read_json(kFixtures / "f16_shards" / "config.json").value()};
  for (const auto& folder :
       std::filesystem::directory_iterator(GRACE_SOURCE_DIR "/tests/fixtures/architectures"))
    configs.push_back(read_json(folder.path() / "config.json").value());
  for (const Json& config : configs) {
    for (const auto& [key, unused] : config.items()) {
      for (const Json& value : values) {
        Json changed = config;
        changed[key] = value;
        const auto read = parse_model_config(changed.dump(), "c");
        if (!read.ok()) {
          EXPECT_THAT(read.error().message, testing::StartsWith("c: "));
        }
      }
    }
  }
}

}  // namespace
}  // namespace grace
