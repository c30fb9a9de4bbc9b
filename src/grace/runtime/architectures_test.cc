// The engine against what the transformers library computed from small random checkpoints of every
// architecture (tests/fixtures/architectures).
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>

#include "grace/runtime/architecture_fixtures.h"

namespace grace {
namespace {

class AnArchitecture : public testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path folder() const { return kFixtures / GetParam(); }
};

TEST_P(AnArchitecture, HasTheLogitsOfTransformersHoweverItsTokensCome) {
  const Expected expected(folder());
  std::mutex mutex;
  std::map<std::pair<std::size_t, std::size_t>, std::vector<float>>
      on_one_rank;  // of prompt and tokens a step
  for (const int ranks : {1, 2, 4}) {
    on_ranks(folder(), ranks, {}, [&](Engine& engine, std::size_t rank) -> Status {
      // Prompts of unequal length, dealt to the ranks: a rank may have none.
      std::vector<Tokens> prompts;
      std::vector<std::size_t> which;
      for (std::size_t i = rank; i < expected.num_prompts(); i += static_cast<std::size_t>(ranks)) {
        prompts.push_back(expected.prompt(i));
        which.push_back(i);
      }
      for (const std::size_t count : {std::size_t{1000}, std::size_t{7}, std::size_t{1}}) {
        engine.reset(static_cast<int>(prompts.size()));
        std::vector<std::size_t> done(prompts.size(), 0);
        std::vector<std::vector<float>> logits(prompts.size());
        for (std::size_t step = 0; step * count < 160; ++step)  // as many on every rank
          GRACE_TRY(step_together(engine, prompts, done, count, logits));
        for (std::size_t s = 0; s < prompts.size(); ++s) {
          const std::string way = "prompt " + std::to_string(which[s]) + ", " + std::to_string(count) +
                                  " tokens a step, " + std::to_string(ranks) + " ranks";
          EXPECT_LE(distance(logits[s], expected.logits(which[s])), 1e-4) << way;
          const std::lock_guard lock(mutex);
          const auto [same, first] = on_one_rank.try_emplace({which[s], count}, logits[s]);
          EXPECT_EQ(first, ranks == 1);
          EXPECT_TRUE(same->second == logits[s]) << way << ": other bits than on one rank";
        }
      }
      return {};
    });
  }
}

TEST_P(AnArchitecture, SaysTheTextOfTransformers) {
  const Expected expected(folder());
  for (const int ranks : {1, 2}) {
    on_ranks(folder(), ranks, {}, [&](Engine& engine, std::size_t) -> Status {
      // The same on every rank; all prompts that have a text go on side by side.
      std::vector<Tokens> texts, said;
      for (std::size_t i = 0; i < expected.num_prompts(); ++i)
        if (expected.has("greedy_" + std::to_string(i))) {
          texts.push_back(expected.prompt(i));
          said.push_back(expected.integers("greedy_" + std::to_string(i)));
        }
      EXPECT_GE(texts.size(), 3U);
      engine.reset(static_cast<int>(texts.size()));
      const std::vector<Tokens> prompts = texts;
      std::vector<std::size_t> done(texts.size(), 0);
      const auto vocabulary = static_cast<std::size_t>(engine.config().vocab_size);
      for (std::size_t step = 0; step < said[0].size(); ++step) {
        std::vector<std::vector<float>> logits(texts.size());
        GRACE_TRY(step_together(engine, texts, done, 1000, logits));
        for (std::size_t s = 0; s < texts.size(); ++s)
          texts[s].push_back(best_of(std::span<const float>(logits[s]).last(vocabulary)));
      }
      for (std::size_t s = 0; s < texts.size(); ++s)
        EXPECT_EQ(Tokens(texts[s].begin() + static_cast<std::ptrdiff_t>(prompts[s].size()), texts[s].end()),
                  said[s])
            << "prompt " << s;
      return {};
    });
  }
}

// bf16 against f32 of the same choices of experts, beside how far transformers' own bf16 is from it.
TEST_P(AnArchitecture, IsInBf16NotFartherFromF32ThanTwiceWhatTransformersIs) {
  const Expected expected(folder());
  const std::vector<Tokens> prompt{expected.prompt(expected.num_prompts() - 1)};
  const Tokens experts = expected.integers("bf16_experts");  // [T, M, K]
  const std::vector<float> forced = expected.reals("forced_logits");
  const double theirs = distance(expected.reals("bf16_logits"), forced);
  const ModelConfig config = read_model_config(folder()).value();
  EngineOptions options;
  options.choose = forced_to(experts, config);
  for (const kernels::Instructions instructions : kernels::usable_instructions())
    for (const auto& [numbers, bound] :
         {std::pair{kernels::Numbers::kF32, 1e-4}, {kernels::Numbers::kBf16, 2 * theirs}})
      for (const std::size_t count : {std::size_t{1000}, std::size_t{1}}) {
        options.arithmetic = {instructions, numbers};
        on_ranks(folder(), 1, options, [&](Engine& engine, std::size_t) -> Status {
          engine.reset(1);
          std::vector<std::size_t> done(1, 0);
          std::vector<std::vector<float>> logits(1);
          while (done[0] < prompt[0].size()) GRACE_TRY(step_together(engine, prompt, done, count, logits));
          const double ours = distance(logits[0], forced);
          EXPECT_LE(ours, bound) << name_of(numbers) << " on " << name_of(instructions) << ", " << count
                                 << " tokens a step; transformers' bf16 is " << theirs;
          return {};
        });
      }
}

// Shared experts and dense layers are computed while messages fly, or not, and in parts.
TEST_P(AnArchitecture, HasTheSameBitsHoweverItsWaitsAreFilled) {
  const Expected expected(folder());
  const std::vector<Tokens> prompts{expected.prompt(2), expected.prompt(0)};
  for (const Wire wire : {Wire::kF32, Wire::kBf16}) {
    std::vector<float> first;
    EngineOptions options;
    options.wire = wire;
    for (int way = 0; way < 5; ++way) {
      options.overlap = way == 0 ? Overlap::kOff : Overlap::kAlways;
      options.parts = way == 2 ? 2 : 1;
      options.aligned = way == 3;
      options.dispatch = way == 4 ? Dispatch::kTwoStage : Dispatch::kPerDevice;
      on_ranks(folder(), 4, options, [&](Engine& engine, std::size_t rank) -> Status {
        engine.reset(2);
        std::vector<std::size_t> done(2, 0);
        std::vector<std::vector<float>> logits(2);
        for (int step = 0; step < 3; ++step) GRACE_TRY(step_together(engine, prompts, done, 20, logits));
        logits[0].insert(logits[0].end(), logits[1].begin(), logits[1].end());
        if (rank != 2) return {};
        if (way == 0) first = logits[0];
        EXPECT_TRUE(logits[0] == first) << "way " << way;
        return {};
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, AnArchitecture,
                         testing::Values("olmoe", "qwen3", "qwen3_fused", "qwen2", "mixtral", "mixtral_fused",
                                         "deepseek_v2", "deepseek_v2_grouped", "deepseek_v2_original",
                                         "deepseek_v3"),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST(AnEngine, RefusesAPlanOfPartnersForAGateOfGroups) {
  const std::filesystem::path folder = kFixtures / "deepseek_v2_grouped";
  const ModelConfig config = read_model_config(folder).value();
  const Cluster cluster = parse_cluster("1x1").value();
  Plan plan = vanilla_plan(config.name, config.num_experts, config.moe_layers, cluster);
  plan.strategy = "c2r";
  for (LayerPlan& layer : plan.layers) {
    layer.partners_of_expert.resize(static_cast<std::size_t>(config.num_experts));
    for (int e = 0; e < config.num_experts; ++e)
      for (int other = 0; other < config.num_experts; ++other)
        if (other != e) layer.partners_of_expert[static_cast<std::size_t>(e)].push_back(ExpertId{other});
  }
  const Status status = run_in_process(1, kFixtureTimeout, [&](Transport& transport) -> Status {
    ThreadPool pool(1);
    const auto engine = Engine::make(folder, plan, cluster, transport, pool, {});
    EXPECT_FALSE(engine.ok());
    EXPECT_EQ(engine.error().message,
              "plan c2r: it holds the gate to partners, and the gate of deepseek_v2_grouped holds itself to "
              "groups of "
              "experts");
    return {};
  });
  EXPECT_TRUE(status.ok());
}

}  // namespace
}  // namespace grace
