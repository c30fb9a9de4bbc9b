// For tests: the small random checkpoints of tests/fixtures/architectures, what was computed from them, and
// engines that run them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "grace/base/rng.h"
#include "grace/files/safetensors.h"
#include "grace/runtime/engine.h"
#include "grace/runtime/test_plans.h"

namespace grace {

inline constexpr std::chrono::milliseconds kFixtureTimeout{60000};
inline const std::filesystem::path kFixtures = GRACE_SOURCE_DIR "/tests/fixtures/architectures";

using Tokens = std::vector<std::int32_t>;

// The expected file of one fixture.
class Expected {
 public:
  explicit Expected(const std::filesystem::path& folder)
      : file_(Safetensors::open(folder / "expected.safetensors").value()) {}

  std::size_t num_prompts() const {
    std::size_t count = 0;
    while (has("token_ids_" + std::to_string(count))) ++count;
    return count;
  }
  bool has(const std::string& name) const { return file_.tensors().contains(name); }
  Tokens integers(const std::string& name) const {
    const TensorView view = file_.find(name).value();
    Tokens values(static_cast<std::size_t>(view.num_elements()));
    std::memcpy(values.data(), view.bytes.data(), view.bytes.size());
    return values;
  }
  std::vector<float> reals(const std::string& name) const {
    const TensorView view = file_.find(name).value();
    std::vector<float> values(static_cast<std::size_t>(view.num_elements()));
    read_as_f32(view, name, 0, view.num_elements(), values).value();
    return values;
  }
  Tokens prompt(std::size_t i) const { return integers("token_ids_" + std::to_string(i)); }
  std::vector<float> logits(std::size_t i) const { return reals("logits_" + std::to_string(i)); }

 private:
  Safetensors file_;
};

// The largest difference, as a share of the largest |expected|.
inline double distance(std::span<const float> got, std::span<const float> expected) {
  EXPECT_EQ(got.size(), expected.size());
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < std::min(got.size(), expected.size()); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
    difference =
        std::max(difference, std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i])));
  }
  return difference / largest;
}

// Experts in a random order on the devices of one node or two, half of them twice.
inline Plan plan_of(const ModelConfig& config, const Cluster& cluster, std::uint64_t seed) {
  Plan plan = vanilla_plan(config.name, config.num_experts, config.moe_layers, cluster);
  Rng rng(seed);
  const auto devices = static_cast<std::size_t>(cluster.num_devices());
  for (LayerPlan& layer : plan.layers) {
    std::vector<ExpertId> experts;
    for (int e = 0; e < config.num_experts; ++e) experts.push_back(ExpertId{e});
    rng.shuffle(std::span(experts));
    std::size_t next = 0;
    for (auto& group : layer.primaries_of_device) {
      for (ExpertId& expert : group) expert = experts[next++];
      std::ranges::sort(group);
    }
    for (std::size_t d = 0; devices > 1 && d < devices; d += 2)
      layer.replicas_of_device[(d + 1) % devices] = layer.primaries_of_device[d];
  }
  return plan;
}

// body(engine, rank) on each of `ranks` ranks. threads: of each; 0: three for one rank alone.
inline void on_ranks(const std::filesystem::path& folder, int ranks, const EngineOptions& options,
                     const std::function<Status(Engine&, std::size_t)>& body, int threads = 0) {
  const ModelConfig config = read_model_config(folder).value();
  const Cluster cluster = parse_cluster(ranks == 4 ? "2x2" : "1x" + std::to_string(ranks)).value();
  const Plan plan = plan_of(config, cluster, 7);
  const Status status = run_in_process(ranks, kFixtureTimeout, [&](Transport& transport) -> Status {
    ThreadPool pool(threads > 0 ? threads : ranks == 1 ? 3 : 1);
    const auto engine = GRACE_TRY(Engine::make(folder, plan, cluster, transport, pool, options));
    return body(*engine, static_cast<std::size_t>(transport.rank()));
  });
  EXPECT_TRUE(status.ok()) << status.error().message;
}

// The next `count` tokens of each of `prompts` in the slots 0, 1, ...; logits of each go to its end.
inline Status step_together(Engine& engine, std::span<const Tokens> prompts, std::span<std::size_t> done,
                            std::size_t count, std::vector<std::vector<float>>& logits) {
  StepInput input;
  for (std::size_t s = 0; s < prompts.size(); ++s) {
    const std::size_t last = std::min(prompts[s].size(), done[s] + count);
    if (last == done[s]) continue;
    input.sequences.push_back(static_cast<int>(s));
    input.num_new.push_back(static_cast<int>(last - done[s]));
    for (; done[s] < last; ++done[s]) input.token_ids.push_back(prompts[s][done[s]]);
  }
  std::vector<float> all;
  GRACE_TRY(engine.step(input, true, all));
  auto from = all.begin();
  const std::ptrdiff_t vocabulary = engine.config().vocab_size;
  for (std::size_t i = 0; i < input.sequences.size(); ++i) {
    std::vector<float>& to = logits[static_cast<std::size_t>(input.sequences[i])];
    to.insert(to.end(), from, from + input.num_new[i] * vocabulary);
    from += input.num_new[i] * vocabulary;
  }
  return {};
}

// The experts of `experts` [T, M, K] in place of the gate's. Both arguments outlive what comes back.
inline decltype(EngineOptions::choose) forced_to(const Tokens& experts, const ModelConfig& config) {
  return [&experts, &config](MoeOrdinal layer, int, int position, std::span<std::uint16_t> chosen) {
    const std::size_t first =
        (static_cast<std::size_t>(position) * config.moe_layers.size() + layer.idx()) * chosen.size();
    for (std::size_t k = 0; k < chosen.size(); ++k)
      chosen[k] = static_cast<std::uint16_t>(experts[first + k]);
  };
}

inline std::int32_t best_of(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
}

}  // namespace grace
