// Positions far beyond those a model was first trained for, against what DeepSeek's own modelling code
// computed (tests/fixtures/far).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "grace/files/json_file.h"
#include "grace/runtime/architecture_fixtures.h"
#include "grace/runtime/attention_block.h"

namespace grace {
namespace {

const std::filesystem::path kFar = GRACE_SOURCE_DIR "/tests/fixtures/far";

class FarPositions : public testing::TestWithParam<const char*> {};

TEST_P(FarPositions, HaveTheLogitsOfTheOriginalHoweverTheirTokensCome) {
  const std::filesystem::path folder = kFar / GetParam();
  const Expected expected(folder);
  const std::vector<Tokens> prompts{expected.integers("token_ids")};
  const Tokens kept = expected.integers("positions");
  const std::vector<float> theirs = expected.reals("logits");
  for (const kernels::Instructions instructions : kernels::usable_instructions())
    for (const std::size_t count : {std::size_t{1000}, std::size_t{70}, std::size_t{1}}) {
      EngineOptions options;
      options.arithmetic.instructions = instructions;
      on_ranks(
          folder, 1, options,
          [&](Engine& engine, std::size_t) -> Status {
            engine.reset(1);
            std::vector<std::size_t> done(1, 0);
            std::vector<std::vector<float>> logits(1);
            while (done[0] < prompts[0].size())
              GRACE_TRY(step_together(engine, prompts, done, count, logits));
            const auto vocabulary = static_cast<std::size_t>(engine.config().vocab_size);
            std::vector<float> ours;
            for (const std::int32_t position : kept) {
              const auto row =
                  std::span(logits[0]).subspan(static_cast<std::size_t>(position) * vocabulary, vocabulary);
              ours.insert(ours.end(), row.begin(), row.end());
            }
            EXPECT_LE(distance(ours, theirs), 1e-4)
                << name_of(instructions) << ", " << count << " tokens a step";
            return {};
          },
          1);
    }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, FarPositions,
                         testing::Values("deepseek_v2", "deepseek_v2_one_mscale", "deepseek_v3"),
                         [](const auto& parameter) { return std::string(parameter.param); });

// The published models' own parameters, up to their last position. An angle of 163,839 in f32 is coarse, so
// that frequencies must be the original's to the bit.
TEST(Turns, AreTheOriginalsUpToTheLastPosition) {
  const Safetensors file = Safetensors::open(kFar / "rotations.safetensors").value();
  const auto reals = [&](const std::string& name) {
    const TensorView view = file.find(name).value();
    std::vector<float> values(static_cast<std::size_t>(view.num_elements()));
    read_as_f32(view, name, 0, view.num_elements(), values).value();
    return values;
  };
  const TensorView view = file.find("positions").value();
  Tokens positions(static_cast<std::size_t>(view.num_elements()));
  std::memcpy(positions.data(), view.bytes.data(), view.bytes.size());
  EXPECT_EQ(positions.back(), 163839);
  const Json yarn{{"type", "yarn"},  {"factor", 40},   {"original_max_position_embeddings", 4096},
                  {"beta_fast", 32}, {"beta_slow", 1}, {"mscale", 0.707}};
  for (const auto& [name, all_dim] :
       {std::pair{"deepseek_v2", 0.707}, {"deepseek_v3", 1.0}, {"one_mscale", 0.0}}) {
    Json json = read_json(kFar / "deepseek_v2" / "config.json").value();
    json["qk_rope_head_dim"] = 64;
    json["max_position_embeddings"] = 163840;
    json["rope_scaling"] = yarn;
    if (all_dim > 0) json["rope_scaling"]["mscale"] = json["rope_scaling"]["mscale_all_dim"] = all_dim;
    const ModelConfig config = parse_model_config(json.dump(), name).value();
    kernels::Rotations turns;
    kernels::turn_to(positions, rotary_of(config), turns);
    for (const auto& [ours, kind] : {std::pair{&turns.cosine, "cosine_"}, {&turns.sine, "sine_"}}) {
      const std::vector<float> theirs = reals(std::string(kind) + name);
      ASSERT_EQ(ours->size(), theirs.size());
      for (std::size_t i = 0; i < theirs.size(); ++i)
        EXPECT_NEAR((*ours)[i], theirs[i], 2e-7)
            << kind << name << " of pair " << i % turns.pairs << " at " << positions[i / turns.pairs];
    }
  }
}

}  // namespace
}  // namespace grace
