// The engine's logits against bounds that are derived, for every instruction set, in f32 and bf16
// (docs/decisions/027-bounds-at-the-logits.md).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <string>

#include "grace/runtime/architecture_fixtures.h"
#include "grace/runtime/generate.h"
#include "grace/runtime/model_on_tape.h"
#include "grace/runtime/near_ties.h"

namespace grace {
namespace {

using kernels::Numbers;

// By Hoeffding's inequality a sum of independent roundings, each as often up as down, leaves so many roots of
// the sum of their squares with a chance of 2 exp(-lambda^2 / 2): 3e-8 for one logit.
constexpr double kLambda = 6;
// Of a prompt: enough to pass the positions that its model was made for, few enough to be quick.
constexpr std::size_t kMostTokens = 40;
// Tokens whose worst logit is looked at, beside the worst of all.
constexpr std::size_t kTokensSeen = 8;

// A fixture's last prompt, run with the experts that the fixture names.
struct ForcedRun {
  explicit ForcedRun(const std::filesystem::path& folder) : model(folder), expected(folder) {
    prompt = expected.prompt(expected.num_prompts() - 1);
    prompt.resize(std::min(prompt.size(), kMostTokens));
    experts = expected.integers("bf16_experts");
  }
  std::vector<float> logits(const kernels::Arithmetic& arithmetic, bool alone, int threads) const {
    EngineOptions options;
    options.arithmetic = arithmetic;
    options.choose = forced_to(experts, model.config);
    std::vector<std::vector<float>> logits(1);
    const std::vector<Tokens> prompts{prompt};
    on_ranks(
        model_folder(), 1, options,
        [&](Engine& engine, std::size_t) -> Status {
          engine.reset(1);
          std::vector<std::size_t> done(1, 0);
          while (done[0] < prompt.size())
            GRACE_TRY(step_together(engine, prompts, done, alone ? 1 : 1000, logits));
          return {};
        },
        threads);
    return logits[0];
  }
  std::filesystem::path model_folder() const { return kFixtures / model.config.name; }

  ModelOfTapes model;
  Expected expected;
  Tokens prompt, experts;
};

// The exact logits of a run [T, V], and by cell how far its roundings may lead from them.
class Bounds {
 public:
  Bounds(const ForcedRun& run, Numbers numbers, bool alone)
      : logits_(run.model.run(tape_, run.prompt, run.experts, numbers == Numbers::kBf16, alone)),
        vocabulary_(static_cast<std::size_t>(run.model.config.vocab_size)) {}

  const RoundingTape& tape() const { return tape_; }
  RoundingTape::Id id_of(std::size_t cell) const { return logits_[cell / vocabulary_][cell % vocabulary_]; }
  double exact(std::size_t cell) const { return tape_[id_of(cell)]; }
  std::size_t cells() const { return logits_.size() * vocabulary_; }
  std::size_t vocabulary() const { return vocabulary_; }
  double largest() const {
    double largest = 0;
    for (std::size_t cell = 0; cell < cells(); ++cell) largest = std::max(largest, std::abs(exact(cell)));
    return largest;
  }
  const TapeBound& of(std::size_t cell) {
    const auto found = bounds_.find(cell);
    if (found != bounds_.end()) return found->second;
    return bounds_.emplace(cell, tape_.bound(id_of(cell))).first->second;
  }
  std::vector<float> exact_logits() const {
    std::vector<float> all;
    for (std::size_t cell = 0; cell < cells(); ++cell) all.push_back(static_cast<float>(exact(cell)));
    return all;
  }

 private:
  RoundingTape tape_;
  std::vector<TapeRange> logits_;
  std::size_t vocabulary_;
  std::map<std::size_t, TapeBound> bounds_;
};

// Of the cell where |got - exact| is largest, as shares of the largest |logit|.
struct Seen {
  double observed = 0, most = 0, likely = 0;
};

// The cells to look at: the worst of some tokens, those spread evenly, and the worst of all.
std::vector<std::size_t> worst_cells(const Bounds& bounds, std::span<const float> got) {
  const auto off = [&](std::size_t cell) {
    return std::abs(static_cast<double>(got[cell]) - bounds.exact(cell));
  };
  const std::size_t tokens = bounds.cells() / bounds.vocabulary();
  std::vector<std::size_t> cells;
  std::size_t worst = 0;
  for (std::size_t t = 0; t < tokens; ++t) {
    std::size_t of_token = t * bounds.vocabulary();
    for (std::size_t cell = of_token; cell < (t + 1) * bounds.vocabulary(); ++cell)
      if (off(cell) > off(of_token)) of_token = cell;
    if (off(of_token) > off(worst)) worst = of_token;
    if (t * kTokensSeen / tokens != (t + 1) * kTokensSeen / tokens) cells.push_back(of_token);
  }
  cells.push_back(worst);
  return cells;
}

Seen expect_within(Bounds& bounds, std::span<const float> got, const std::string& way) {
  EXPECT_EQ(got.size(), bounds.cells());
  const double largest = bounds.largest();
  Seen seen;
  for (const std::size_t cell : worst_cells(bounds, got)) {
    const double observed = std::abs(static_cast<double>(got[cell]) - bounds.exact(cell));
    const TapeBound& bound = bounds.of(cell);
    const double stored = kUnitF32 * std::abs(bounds.exact(cell));  // what is compared is f32
    EXPECT_LE(observed, bound.most + stored) << way << ", cell " << cell;
    EXPECT_LE(observed, kLambda * bound.likely + stored) << way << ", cell " << cell;
    if (observed / largest >= seen.observed)
      seen = {observed / largest, bound.most / largest, kLambda * bound.likely / largest};
  }
  return seen;
}

class Logits : public testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path folder() const { return kFixtures / GetParam(); }
};

TEST_P(Logits, AreWithinTheBoundOnEveryPath) {
  const ForcedRun run(folder());
  const std::vector<float> all = run.expected.reals("forced_logits");
  for (const Numbers numbers : {Numbers::kF32, Numbers::kBf16})
    for (const bool alone : {false, true}) {
      Bounds bounds(run, numbers, alone);
      EXPECT_LE(distance(bounds.exact_logits(), std::span(all).first(bounds.cells())), 1e-5)
          << "the twin is another model";
      Seen worst;
      for (const kernels::Instructions instructions : kernels::usable_instructions()) {
        const std::string way = std::string(name_of(numbers)) + " on " + std::string(name_of(instructions)) +
                                (alone ? ", token by token" : ", at once");
        const std::vector<float> got = run.logits({instructions, numbers}, alone, 1);
        EXPECT_TRUE(got == run.logits({instructions, numbers}, alone, 2))
            << way << ": other bits on 2 threads";
        const Seen seen = expect_within(bounds, got, way);
        if (seen.observed > worst.observed) worst = seen;
      }
      std::cout << fmt::format(
          "{}, {}, {}: off by {:.1e} at most, which may be {:.1e} ({:.0f} times) and is likely below {:.1e} "
          "({:.0f} times)\n",
          GetParam(), name_of(numbers), alone ? "token by token" : "at once", worst.observed, worst.most,
          worst.most / worst.observed, worst.likely, worst.likely / worst.observed);
    }
}

// The bound is no idle one: a run whose roundings are all at their largest, with the signs that hurt, is that
// far off. What of it is missing or too much is of second order.
TEST_P(Logits, ReachTheBoundWhereAllRoundingsConspire) {
  const ForcedRun run(folder());
  for (const Numbers numbers : {Numbers::kF32, Numbers::kBf16}) {
    Bounds bounds(run, numbers, false);
    const std::size_t last = bounds.cells() - bounds.vocabulary();
    std::size_t worst = last;
    for (std::size_t cell = last; cell < bounds.cells(); cell += 16)
      if (bounds.of(cell).most > bounds.of(worst).most) worst = cell;
    for (const double sign : {1.0, -1.0}) {
      const std::vector<double> errors = bounds.tape().worst_errors(bounds.id_of(worst), sign);
      RoundingTape tape(errors);
      const auto logits = run.model.run(tape, run.prompt, run.experts, numbers == Numbers::kBf16, false);
      const double moved =
          tape[logits[worst / bounds.vocabulary()][worst % bounds.vocabulary()]] - bounds.exact(worst);
      const double share = sign * moved / bounds.of(worst).most;
      // Of bf16 the second order is a fraction of the first, and as often less as more.
      EXPECT_LE(share, numbers == Numbers::kF32 ? 1.002 : 1.25);
      EXPECT_GE(share, numbers == Numbers::kF32 ? 0.998 : 0.1);
      std::cout << fmt::format("{}, {}: {:.4f} of the bound reached; by running error analysis {:.0e}\n",
                               GetParam(), name_of(numbers), share,
                               bounds.tape().running_bounds()[bounds.id_of(worst)] / bounds.largest());
    }
  }
}

// The widest of the reference's margins where a text first differs, as a share of its largest |logit| there.
double widest_margin(const GenerateResult& reference, const std::vector<Tokens>& said) {
  double widest = 0;
  for (std::size_t p = 0; p < said.size(); ++p) {
    const Tokens& text = reference.outputs[p];
    const auto first = static_cast<std::size_t>(std::ranges::mismatch(text, said[p]).in1 - text.begin());
    if (first == text.size()) continue;
    const TokenMargin& there = reference.margins[p][first];
    widest = std::max(widest, static_cast<double>(there.margin) / static_cast<double>(there.largest));
  }
  return widest;
}

// What each of an engine's prompts is followed by, the gate choosing.
GenerateResult texts_on(const std::filesystem::path& folder, const std::vector<Tokens>& prompts,
                        const kernels::Arithmetic& arithmetic, int threads) {
  const ModelConfig config = read_model_config(folder).value();
  const Cluster cluster = parse_cluster("1x1").value();
  const Plan plan = vanilla_plan(config.name, config.num_experts, config.moe_layers, cluster);
  GenerateResult said;
  const Status status = run_in_process(1, kFixtureTimeout, [&](Transport& transport) -> Status {
    ThreadPool pool(threads);
    const auto engine =
        GRACE_TRY(Engine::make(folder, plan, cluster, transport, pool, {.arithmetic = arithmetic}));
    said = GRACE_TRY(generate(*engine, transport, prompts, {.ignore_eos = true}, {}));
    return {};
  });
  EXPECT_TRUE(status.ok()) << status.error().message;
  return said;
}

TEST_P(Logits, SayTheSameTextOnEveryPathButAtNearTies) {
  const ForcedRun run(folder());
  std::vector<Tokens> prompts, theirs;
  for (std::size_t i = 0; i < run.expected.num_prompts(); ++i)
    if (run.expected.has("greedy_" + std::to_string(i))) {
      prompts.push_back(run.expected.prompt(i));
      theirs.push_back(run.expected.integers("greedy_" + std::to_string(i)));
    }
  for (const Numbers numbers : {Numbers::kF32, Numbers::kBf16}) {
    Bounds bounds(run, numbers, true);
    // Two runs, each within a bound of the exact one, and two logits of each.
    const std::size_t last = bounds.cells() - bounds.vocabulary();
    double near = 0;
    for (std::size_t cell = last; cell < bounds.cells(); cell += 8)
      near = std::max(near, 4 * kLambda * bounds.of(cell).likely / bounds.largest());
    const GenerateResult reference =
        texts_on(folder(), prompts, {kernels::Instructions::kPortable, numbers}, 1);
    if (numbers == Numbers::kF32) {
      EXPECT_TRUE(reference.outputs == theirs);
    }
    TextDifference all;
    std::size_t texts = 0;
    double widest = 0;
    for (const kernels::Instructions instructions : kernels::usable_instructions())
      for (const int threads : {1, 2}) {
        const GenerateResult said = texts_on(folder(), prompts, {instructions, numbers}, threads);
        const TextDifference found = difference_of(reference.outputs, reference.margins, said.outputs, near);
        EXPECT_TRUE(found.is_explained())
            << name_of(numbers) << " on " << name_of(instructions) << ", " << threads << " threads";
        all.prompts += found.prompts;
        all.near_ties += found.near_ties;
        texts += prompts.size();
        widest = std::max(widest, widest_margin(reference, said.outputs));
      }
    std::cout << fmt::format(
        "{}, {}: {} of {} texts differ, {} at near-ties: margins up to {:.1e} of the largest logit, {:.1e} "
        "allowed\n",
        GetParam(), name_of(numbers), all.prompts, texts, all.near_ties, widest, near);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Logits,
                         testing::Values("olmoe", "qwen3", "qwen3_fused", "qwen2", "mixtral", "mixtral_fused",
                                         "deepseek_v2", "deepseek_v2_grouped", "deepseek_v2_original",
                                         "deepseek_v3"),
                         [](const auto& parameter) { return std::string(parameter.param); });

}  // namespace
}  // namespace grace
