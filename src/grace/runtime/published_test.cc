// The engine against logits that the transformers library computed for small random checkpoints
// (tests/fixtures/olmoe).
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>

#include "grace/files/safetensors.h"
#include "grace/runtime/engine.h"

namespace grace {
namespace {

struct Example {
  std::vector<std::int32_t> token_ids;
  std::vector<float> logits;  // [T, V]
};

std::vector<Example> examples_of(const std::filesystem::path& folder) {
  const Safetensors file = Safetensors::open(folder / "expected.safetensors").value();
  std::vector<Example> examples;
  for (int i = 0; file.tensors().contains("token_ids_" + std::to_string(i)); ++i) {
    const TensorView ids = file.find("token_ids_" + std::to_string(i)).value();
    const TensorView logits = file.find("logits_" + std::to_string(i)).value();
    Example& example = examples.emplace_back();
    EXPECT_EQ(ids.dtype, Dtype::kI32);
    example.token_ids.resize(static_cast<std::size_t>(ids.num_elements()));
    std::memcpy(example.token_ids.data(), ids.bytes.data(), ids.bytes.size());
    example.logits.resize(static_cast<std::size_t>(logits.num_elements()));
    read_as_f32(logits, "logits", 0, logits.num_elements(), example.logits).value();
  }
  return examples;
}

// Logits [T, V] of one sequence in slot 0, `chunk` tokens a step.
Result<std::vector<float>> run(Engine& engine, const std::vector<std::int32_t>& tokens, std::size_t chunk) {
  engine.reset(1);
  std::vector<float> all;
  for (std::size_t first = 0; first < tokens.size(); first += chunk) {
    const std::size_t last = std::min(tokens.size(), first + chunk);
    const StepInput input{{0},
                          {tokens.begin() + static_cast<std::ptrdiff_t>(first),
                           tokens.begin() + static_cast<std::ptrdiff_t>(last)},
                          {static_cast<int>(last - first)}};
    std::vector<float> logits;
    const Status status = engine.step(input, true, logits);
    if (!status.ok()) return status.error();
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

void expect_equal_to_published(const std::filesystem::path& folder, const std::vector<Example>& examples,
                               int ranks) {
  ASSERT_FALSE(examples.empty());
  const ModelConfig config = read_model_config(folder).value();
  const Cluster cluster = parse_cluster("1x" + std::to_string(ranks)).value();
  const Plan plan = vanilla_plan(config.name, config.num_experts, config.moe_layers, cluster);
  const Status status =
      run_in_process(ranks, std::chrono::milliseconds(60000), [&](Transport& transport) -> Status {
        ThreadPool pool(1);
        const auto engine = GRACE_TRY(Engine::make(folder, plan, cluster, transport, pool, {}));
        for (const Example& example : examples) {
          // At once, in uneven chunks, and token by token.
          for (const std::size_t chunk : {example.token_ids.size(), std::size_t{3}, std::size_t{1}}) {
            const std::vector<float> logits = GRACE_TRY(run(*engine, example.token_ids, chunk));
            EXPECT_EQ(logits.size(), example.logits.size());
            double largest = 0;
            double difference = 0;
            for (std::size_t i = 0; i < std::min(logits.size(), example.logits.size()); ++i) {
              largest = std::max(largest, std::abs(static_cast<double>(example.logits[i])));
              difference = std::max(difference, std::abs(static_cast<double>(logits[i]) -
                                                         static_cast<double>(example.logits[i])));
            }
            EXPECT_LE(difference, 1e-4 * largest) << folder << ", " << chunk << " tokens a step";
          }
        }
        return {};
      });
  EXPECT_TRUE(status.ok()) << status.error().message;
}

const std::filesystem::path kFixtures = GRACE_SOURCE_DIR "/tests/fixtures/olmoe";

TEST(AnEngine, GivesTheLogitsThatTransformersGivesForSmallRandomModels) {
  for (const char* name : {"bf16_published", "f16_shards", "f32_own_head", "bf16_fused"})
    for (const int ranks : {1, 3})
      expect_equal_to_published(kFixtures / name, examples_of(kFixtures / name), ranks);
}

TEST(AnEngine, GivesTheLogitsThatTransformersGivesForTheShippedModel) {
  const std::vector<Example> examples = examples_of(kFixtures / "shipped");
  for (const int ranks : {1, 3}) expect_equal_to_published(GRACE_SOURCE_DIR "/models/demo", examples, ranks);
}

}  // namespace
}  // namespace grace
