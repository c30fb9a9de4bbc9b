// The engine against what the transformers library computed from small random checkpoints of every
// architecture (tests/fixtures/architectures).
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "grace/base/rng.h"
#include "grace/files/safetensors.h"
#include "grace/runtime/engine.h"
#include "grace/runtime/generate.h"
#include "grace/runtime/test_plans.h"

namespace grace {
namespace {

constexpr std::chrono::milliseconds kTimeout{60000};
const std::filesystem::path kFixtures = GRACE_SOURCE_DIR "/tests/fixtures/architectures";

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
double distance(std::span<const float> got, std::span<const float> expected) {
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
Plan plan_of(const ModelConfig& config, const Cluster& cluster, std::uint64_t seed) {
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

// body(engine, rank) on each of `ranks` ranks.
void on_ranks(const std::filesystem::path& folder, int ranks, const EngineOptions& options,
              const std::function<Status(Engine&, std::size_t)>& body) {
  const ModelConfig config = read_model_config(folder).value();
  const Cluster cluster = parse_cluster(ranks == 4 ? "2x2" : "1x" + std::to_string(ranks)).value();
  const Plan plan = plan_of(config, cluster, 7);
  const Status status = run_in_process(ranks, kTimeout, [&](Transport& transport) -> Status {
    ThreadPool pool(ranks == 1 ? 3 : 1);
    const auto engine = GRACE_TRY(Engine::make(folder, plan, cluster, transport, pool, options));
    return body(*engine, static_cast<std::size_t>(transport.rank()));
  });
  EXPECT_TRUE(status.ok()) << status.error().message;
}

// The next `count` tokens of each of `prompts` in the slots 0, 1, ...; logits of each go to its end.
Status step_together(Engine& engine, std::span<const Tokens> prompts, std::span<std::size_t> done,
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

std::int32_t best_of(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
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
  options.choose = [&](MoeOrdinal layer, int, int position, std::span<std::uint16_t> chosen) {
    const std::size_t first =
        (static_cast<std::size_t>(position) * config.moe_layers.size() + layer.idx()) * chosen.size();
    for (std::size_t k = 0; k < chosen.size(); ++k)
      chosen[k] = static_cast<std::uint16_t>(experts[first + k]);
  };
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
  const Status status = run_in_process(1, kTimeout, [&](Transport& transport) -> Status {
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
