// What each architecture's config.json reads as, and the tensors that it asks for.
#include <gmock/gmock.h>

#include <cmath>

#include "grace/files/json_file.h"
#include "grace/files/mapped_file.h"
#include "grace/model/architecture.h"
#include "grace/model/model.h"

namespace grace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string message_of(const Json& config) {
  const auto read = parse_model_config(config.dump(), "config.json");
  return read.ok() ? "ok" : read.error().message;
}

// As DeepSeek-V2-Lite's, smaller.
Json deepseek_v2() {
  return {{"architectures", {"DeepseekV2ForCausalLM"}},
          {"first_k_dense_replace", 1},
          {"hidden_size", 64},
          {"intermediate_size", 48},
          {"kv_lora_rank", 16},
          {"max_position_embeddings", 640},
          {"moe_intermediate_size", 20},
          {"moe_layer_freq", 1},
          {"n_group", 1},
          {"n_routed_experts", 8},
          {"n_shared_experts", 2},
          {"norm_topk_prob", false},
          {"num_attention_heads", 4},
          {"num_experts_per_tok", 3},
          {"num_hidden_layers", 3},
          {"num_key_value_heads", 4},
          {"q_lora_rank", nullptr},
          {"qk_nope_head_dim", 8},
          {"qk_rope_head_dim", 4},
          {"rope_scaling",
           {{"beta_fast", 32},
            {"beta_slow", 1},
            {"factor", 40},
            {"mscale", 0.707},
            {"mscale_all_dim", 0.707},
            {"original_max_position_embeddings", 16},
            {"type", "yarn"}}},
          {"rope_theta", 10000},
          {"routed_scaling_factor", 16.0},
          {"scoring_func", "softmax"},
          {"topk_group", 1},
          {"topk_method", "greedy"},
          {"v_head_dim", 8},
          {"vocab_size", 96}};
}

Json deepseek_v3() {
  Json config = deepseek_v2();
  config["architectures"] = {"DeepseekV3ForCausalLM"};
  config["q_lora_rank"] = 24;
  config["scoring_func"] = "sigmoid";
  config["topk_method"] = "noaux_tc";
  config["norm_topk_prob"] = true;
  config["routed_scaling_factor"] = 2.5;
  config["n_group"] = 4;
  config["topk_group"] = 2;
  config["num_nextn_predict_layers"] = 1;
  return config;
}

ModelConfig parsed(const Json& config) { return parse_model_config(config.dump(), "c").value(); }

TEST(ADeepseekV2Config, SaysWhatItsLayersAre) {
  const ModelConfig config = parsed(deepseek_v2());
  EXPECT_EQ(config.attention, AttentionKind::kLatent);
  EXPECT_EQ(config.head_dim, 12);
  EXPECT_EQ(config.value_head_dim, 8);
  EXPECT_EQ(config.rotary_dim, 4);
  EXPECT_EQ(config.kv_rank, 16);
  EXPECT_EQ(config.query_rank, 0);
  EXPECT_THAT(config.moe_layers, ElementsAre(1, 2));
  EXPECT_FALSE(config.is_moe(0));
  EXPECT_TRUE(config.is_moe(2));
  EXPECT_EQ(config.dense_ffn_size, 48);
  EXPECT_EQ(config.expert_ffn_size, 20);
  EXPECT_EQ(config.shared_ffn_size, 40);
  EXPECT_EQ(config.choice.scale, 16);
  EXPECT_EQ(config.choice.groups, 1);
  EXPECT_TRUE(config.rope.interleaved);
  EXPECT_EQ(config.rope.yarn, (Yarn{40, 16, 32, 1, true}));
  EXPECT_EQ(config.rope.amplitude, 1);
  const double mscale = 0.1 * 0.707 * std::log(40) + 1;
  EXPECT_NEAR(config.attention_scale, mscale * mscale / std::sqrt(12), 1e-12);
}

// DeepSeek's own code: mscale is 1 where it is absent, mscale_all_dim 0.
TEST(ADeepseekV2Config, TakesAnAbsentMscaleAsItsMakersDo) {
  Json config = deepseek_v2();
  config["rope_scaling"].erase("mscale");
  const double all = 0.1 * 0.707 * std::log(40) + 1, one = 0.1 * std::log(40) + 1;
  EXPECT_NEAR(parsed(config).rope.amplitude, one / all, 1e-12);
  EXPECT_NEAR(parsed(config).attention_scale, all * all / std::sqrt(12), 1e-12);
  config["rope_scaling"]["mscale"] = 0.707;
  config["rope_scaling"]["mscale_all_dim"] = nullptr;
  EXPECT_NEAR(parsed(config).rope.amplitude, all, 1e-12);
  EXPECT_NEAR(parsed(config).attention_scale, 1 / std::sqrt(12), 1e-12);
}

TEST(ADeepseekV2Config, LimitsGroupsOnlyWhereItsMethodSaysSo) {
  Json config = deepseek_v2();
  config["n_group"] = 4;
  config["topk_group"] = 2;
  EXPECT_EQ(parsed(config).choice.groups, 1);
  config["topk_method"] = "group_limited_greedy";
  EXPECT_EQ(parsed(config).choice.groups, 4);
  EXPECT_EQ(parsed(config).choice.groups_kept, 2);
  EXPECT_EQ(parsed(config).choice.group_best, 1);
  config["topk_group"] = 1;
  EXPECT_EQ(message_of(config),
            "config.json: topk_group is 1, whose 2 experts are fewer than num_experts_per_tok 3");
  config["n_group"] = 3;
  EXPECT_EQ(message_of(config), "config.json: n_group is 3, no divisor of 8 experts");
  config["topk_method"] = "noaux_tc";
  EXPECT_EQ(message_of(config),
            "config.json: topk_method is \"noaux_tc\", not one of greedy, group_limited_greedy");
}

TEST(ADeepseekV2Config, ScalesWeightsOnlyWhereTheyAreNotNormalised) {
  Json config = deepseek_v2();
  config["norm_topk_prob"] = true;
  EXPECT_TRUE(parsed(config).norm_topk_prob);
  EXPECT_EQ(parsed(config).choice.scale, 1);
  config["num_experts_per_tok"] = 1;
  EXPECT_FALSE(parsed(config).norm_topk_prob);
  EXPECT_EQ(parsed(config).choice.scale, 16);
}

TEST(ADeepseekV2Config, ObeysItsLayerFrequencyAndScoringFunction) {
  Json config = deepseek_v2();
  config["moe_layer_freq"] = 2;
  EXPECT_THAT(parsed(config).moe_layers, ElementsAre(2));
  config["scoring_func"] = "sigmoid";
  EXPECT_EQ(message_of(config), "config.json: scoring_func is \"sigmoid\", only \"softmax\" is supported");
}

TEST(ADeepseekV3Config, ChoosesWithABiasAndTheTwoBestOfAGroup) {
  const ModelConfig config = parsed(deepseek_v3());
  EXPECT_EQ(config.choice.scoring, Scoring::kSigmoid);
  EXPECT_TRUE(config.choice.corrected);
  EXPECT_EQ(config.choice.groups, 4);
  EXPECT_EQ(config.choice.groups_kept, 2);
  EXPECT_EQ(config.choice.group_best, 2);
  EXPECT_EQ(config.choice.scale, 2.5);
  EXPECT_TRUE(config.norm_topk_prob);
  EXPECT_EQ(config.query_rank, 24);
  EXPECT_EQ(config.num_layers, 3) << "the layer of multi-token prediction is none of them";
  Json odd = deepseek_v3();
  odd["n_group"] = 8;
  odd["topk_group"] = 4;
  EXPECT_EQ(message_of(odd), "config.json: n_group is 8, which leaves fewer than 2 of 8 experts to each");
}

TEST(AConfigOfTransformersFive, SaysTheSameAsThePublishedOne) {
  Json config = deepseek_v2();
  Json rope = config["rope_scaling"];
  rope["rope_type"] = "yarn";
  rope["rope_theta"] = 10000;
  config.erase("rope_scaling");
  config.erase("rope_theta");
  config["rope_parameters"] = rope;
  config["head_dim"] = 4;  // the rotary part, as it writes it
  const ModelConfig five = parsed(config), published = parsed(deepseek_v2());
  EXPECT_EQ(five.rope.yarn, published.rope.yarn);
  EXPECT_EQ(five.attention_scale, published.attention_scale);
  EXPECT_EQ(five.head_dim, published.head_dim);
}

TEST(AConfig, OfPublishedModelsIsRead) {
  const std::filesystem::path folder = GRACE_SOURCE_DIR "/../shared/data/configs";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
  const auto read = [&](const char* name) {
    return parse_model_config(read_text(folder / (std::string(name) + ".config.json")).value(), name).value();
  };
  const ModelConfig lite = read("deepseek2");
  EXPECT_EQ(lite.head_dim, 192);
  EXPECT_EQ(lite.moe_layers.size(), 26U);
  EXPECT_EQ(lite.shared_ffn_size, 2816);
  EXPECT_EQ(lite.dense_ffn_size, 10944);
  const ModelConfig qwen3 = read("qwen3");
  EXPECT_EQ(qwen3.qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(qwen3.num_heads * qwen3.head_dim, 4096) << "not the hidden size";
  EXPECT_TRUE(qwen3.norm_topk_prob);
  EXPECT_FALSE(qwen3.qkv_bias);
  EXPECT_EQ(qwen3.rope.theta, 1e6);
  const ModelConfig qwen2 = read("qwen2");
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_TRUE(qwen2.shared_switched);
  EXPECT_EQ(qwen2.shared_ffn_size, 20480);
  EXPECT_FALSE(qwen2.norm_topk_prob);
  const ModelConfig mixtral = read("mixtral");
  EXPECT_TRUE(mixtral.norm_topk_prob);
  EXPECT_EQ(mixtral.window, 0);
  EXPECT_EQ(mixtral.qk_norm, QkNorm::kNone);
  EXPECT_EQ(mixtral.max_positions, 32768);
  const auto first = parse_model_config(read_text(folder / "deepseek.config.json").value(), "x");
  EXPECT_THAT(first.error().message,
              HasSubstr("architecture \"DeepseekForCausalLM\" is not one of OlmoeForCausalLM"));
}

TEST(AQwenConfig, MayMakeLayersDenseAndMayNotAskForWindows) {
  Json config = {{"architectures", {"Qwen3MoeForCausalLM"}},
                 {"hidden_size", 32},
                 {"num_hidden_layers", 4},
                 {"vocab_size", 96},
                 {"num_attention_heads", 2},
                 {"head_dim", 24},
                 {"num_experts", 8},
                 {"num_experts_per_tok", 2},
                 {"moe_intermediate_size", 12},
                 {"intermediate_size", 40},
                 {"mlp_only_layers", {1}},
                 {"rope_scaling",
                  {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}}}};
  EXPECT_THAT(parsed(config).moe_layers, ElementsAre(0, 2, 3));
  EXPECT_EQ(parsed(config).dense_ffn_size, 40);
  EXPECT_EQ(parsed(config).head_dim, 24);
  EXPECT_NEAR(parsed(config).rope.amplitude, 0.1 * std::log(4) + 1, 1e-12);
  config["decoder_sparse_step"] = 2;
  EXPECT_THAT(parsed(config).moe_layers, ElementsAre(3));
  config["use_sliding_window"] = true;
  EXPECT_EQ(message_of(config), "config.json: use_sliding_window is true, only false is supported");
}

TEST(AConfig, OfQuantisedWeightsSaysWhatTheyAreAndWhatIsSupported) {
  const std::string end = ": quantised weights are not supported, only BF16, F16 and F32 are";
  for (const char* method : {"fp8", "gptq", "awq"}) {
    Json config = deepseek_v3();
    config["quantization_config"] = {{"quant_method", method}, {"bits", 4}};
    EXPECT_EQ(message_of(config),
              "config.json: quantization_config says \"" + std::string(method) + "\"" + end);
  }
  Json config = deepseek_v2();
  config["quantization_config"] = 8;
  EXPECT_EQ(message_of(config), "config.json: quantization_config says 8" + end);
}

}  // namespace
}  // namespace grace
