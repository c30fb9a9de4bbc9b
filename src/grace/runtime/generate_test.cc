#include "grace/runtime/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "grace/runtime/sampler.h"
#include "grace/runtime/test_plans.h"
#include "grace/runtime/tiny_model.h"

namespace grace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Prompts = std::vector<std::vector<std::int32_t>>;

constexpr std::chrono::milliseconds kTimeout{60000};

// Runs body on an engine per rank.
void on_engines(const TinyModel& model, const Plan& plan, const Cluster& cluster,
                const std::function<void(Engine&, Transport&)>& body) {
  const Status status = run_in_process(cluster.num_devices(), kTimeout, [&](Transport& transport) -> Status {
    ThreadPool pool(1);
    const auto engine =
        GRACE_TRY(Engine::make(model.folder(), plan, cluster, transport, pool, {.record_trace = true}));
    body(*engine, transport);
    return {};
  });
  EXPECT_TRUE(status.ok()) << status.error().message;
}

// For a plan of contiguous blocks.
void on_engines(const TinyModel& model, int ranks, const std::function<void(Engine&, Transport&)>& body) {
  const Cluster cluster = cluster_of("1x" + std::to_string(ranks));
  on_engines(model, vanilla(model, cluster), cluster, body);
}

// The outputs, which every rank must have alike.
Prompts outputs_of(const TinyModel& model, const Plan& plan, const Cluster& cluster, const Prompts& prompts,
                   const GenerateOptions& options) {
  std::vector<Prompts> outputs(static_cast<std::size_t>(cluster.num_devices()));
  on_engines(model, plan, cluster, [&](Engine& engine, Transport& transport) {
    outputs[static_cast<std::size_t>(transport.rank())] =
        generate(engine, transport, prompts, options, {}).value().outputs;
  });
  for (const Prompts& theirs : outputs) EXPECT_EQ(theirs, outputs[0]);
  return outputs[0];
}

Prompts outputs_of(const TinyModel& model, int ranks, const Prompts& prompts,
                   const GenerateOptions& options) {
  const Cluster cluster = cluster_of("1x" + std::to_string(ranks));
  return outputs_of(model, vanilla(model, cluster), cluster, prompts, options);
}

const Prompts kPrompts{{1, 2, 3}, {4}, {5, 6, 7, 8, 9, 10, 11}, {12, 13}, {14, 15, 16}};

// Greedy decoding by running the whole text anew for each token.
std::vector<std::int32_t> greedy(const TinyModel& model, std::vector<std::int32_t> tokens, int count,
                                 std::int32_t eos) {
  std::vector<std::int32_t> output;
  const auto vocab = static_cast<std::size_t>(model.shape().vocab);
  while (output.size() < static_cast<std::size_t>(count) && (output.empty() || output.back() != eos)) {
    const auto logits = model.forward(tokens).logits;
    const auto last = std::span(logits).last(vocab);
    output.push_back(static_cast<std::int32_t>(std::ranges::max_element(last) - last.begin()));
    tokens.push_back(output.back());
  }
  return output;
}

TEST(Generation, IsTheGreedyTextOfThePlainForwardPassForEveryRankCountAndPlan) {
  const TinyModel model({.seed = 51});
  Prompts expected;
  for (const auto& prompt : kPrompts) expected.push_back(greedy(model, prompt, 32, -1));
  for (const int ranks : {1, 2, 3, 4})
    EXPECT_EQ(outputs_of(model, ranks, kPrompts, {.max_new_tokens = 32}), expected) << ranks << " ranks";
}

TEST(Generation, EndsASequenceAtItsEndOfTextWhileOthersGoOn) {
  TinyShape shape{.seed = 53};
  const auto first = greedy(TinyModel(shape), kPrompts[0], 12, -1);
  shape.eos = {first[2]};
  const TinyModel model(shape);
  Prompts expected;
  for (const auto& prompt : kPrompts) expected.push_back(greedy(model, prompt, 12, shape.eos[0]));
  EXPECT_LE(expected[0].size(), 3u);
  for (const int ranks : {1, 3})
    EXPECT_EQ(outputs_of(model, ranks, kPrompts, {.max_new_tokens = 12}), expected);
  for (const auto& output : outputs_of(model, 2, kPrompts, {.max_new_tokens = 12, .ignore_eos = true}))
    EXPECT_EQ(output.size(), 12u);
}

TEST(Generation, DrawsTheSameTokensForEveryRankCountAndOthersForAnotherSeed) {
  const TinyModel model({.seed = 57});
  const GenerateOptions options{.max_new_tokens = 10, .temperature = 1.5, .top_p = 0.9, .seed = 5};
  const Prompts expected = outputs_of(model, 1, kPrompts, options);
  for (const int ranks : {2, 4}) EXPECT_EQ(outputs_of(model, ranks, kPrompts, options), expected);
  GenerateOptions other = options;
  other.seed = 6;
  EXPECT_NE(outputs_of(model, 1, kPrompts, other), expected);
}

TEST(Generation, HasFewerPromptsThanRanksOrNoneOrNothingToSay) {
  const TinyModel model({.seed = 59});
  const Prompts two{kPrompts[0], kPrompts[1]};
  EXPECT_EQ(outputs_of(model, 4, two, {.max_new_tokens = 5}),
            outputs_of(model, 1, two, {.max_new_tokens = 5}));
  EXPECT_THAT(outputs_of(model, 2, {}, {.max_new_tokens = 5}), testing::IsEmpty());
  EXPECT_EQ(outputs_of(model, 2, two, {.max_new_tokens = 0}), Prompts(2));
}

TEST(Generation, RefusesWhatTheModelCannotDo) {
  const TinyModel model({});
  on_engines(model, 2, [&](Engine& engine, Transport& transport) {
    const auto error = [&](const Prompts& prompts, const GenerateOptions& options) {
      const auto result = generate(engine, transport, prompts, options, {});
      return result.ok() ? "" : result.error().message;
    };
    EXPECT_THAT(error({{1}, {}}, {.max_new_tokens = 4}), HasSubstr("prompt 1: it has no tokens"));
    EXPECT_EQ(error({{1}, {2, 61}}, {.max_new_tokens = 4}), "prompt 1: token 1: id 61 is outside [0, 61)");
    EXPECT_THAT(error({{-1}}, {.max_new_tokens = 4}), HasSubstr("id -1"));
    EXPECT_EQ(error({{1, 2}}, {.max_new_tokens = 63}),
              "prompt 0: 2 tokens and 63 new ones are more than the model's 64 positions");
    EXPECT_EQ(error({{1, 2}}, {.max_new_tokens = 62}), "");
    EXPECT_THAT(error({{1}}, {.max_new_tokens = -1}), HasSubstr("below 0"));
    EXPECT_THAT(error({{1}}, {.max_new_tokens = 4, .temperature = -1}), HasSubstr("temperature"));
    EXPECT_THAT(error({{1}}, {.temperature = std::numeric_limits<double>::quiet_NaN()}),
                HasSubstr("temperature"));
    EXPECT_THAT(error({{1}}, {.top_p = 0}), HasSubstr("top_p"));
  });
}

TEST(Generation, ReportsItsStepsAndRecordsThem) {
  const TinyModel model({.seed = 61});
  std::vector<std::pair<std::int64_t, std::int64_t>> reports;
  on_engines(model, 2, [&](Engine& engine, Transport& transport) {
    const auto progress = [&](std::int64_t done, std::int64_t total) { reports.emplace_back(done, total); };
    const auto result = generate(engine, transport, kPrompts, {.max_new_tokens = 3}, progress).value();
    EXPECT_EQ(result.decode_steps, 2);
    const Trace trace = engine.take_trace();
    EXPECT_THAT(violations(trace), testing::IsEmpty());
    if (transport.rank() == 1) {
      EXPECT_THAT(trace.prompt_lengths, ElementsAre(1, 2));
      EXPECT_THAT(trace.sequence_offsets, ElementsAre(0, 3, 7));  // the last new token is never run
      EXPECT_EQ(trace.token_ids[0], 4);
      EXPECT_EQ(trace.token_ids[1], result.outputs[1][0]);
    }
  });
  EXPECT_THAT(reports, ElementsAre(std::pair(1, 3), std::pair(2, 3), std::pair(3, 3)));
}

TEST(Generation, TellsHowClearEachChoiceWasOnEveryRank) {
  const TinyModel model({.seed = 63});
  for (const int ranks : {1, 3}) {
    on_engines(model, ranks, [&](Engine& engine, Transport& transport) {
      const auto result = generate(engine, transport, kPrompts, {.max_new_tokens = 4}, {}).value();
      ASSERT_EQ(result.margins.size(), kPrompts.size());
      for (std::size_t p = 0; p < kPrompts.size(); ++p) {
        ASSERT_EQ(result.margins[p].size(), 4u);
        std::vector<std::int32_t> tokens = kPrompts[p];
        for (std::size_t i = 0; i < 4; ++i) {
          const auto logits = model.forward(tokens).logits;
          const auto last = std::span(logits).last(static_cast<std::size_t>(model.shape().vocab));
          std::vector<std::pair<float, std::int32_t>> ranked;  // likeliest first, ties to the lower id
          float largest = 0;
          for (std::size_t id = 0; id < last.size(); ++id) {
            ranked.emplace_back(-last[id], static_cast<std::int32_t>(id));
            largest = std::max(largest, std::abs(last[id]));
          }
          std::ranges::sort(ranked);
          const TokenMargin& told = result.margins[p][i];
          EXPECT_EQ(result.outputs[p][i], ranked[0].second);
          EXPECT_EQ(told.second, ranked[1].second);
          // The plain pass adds in another order: within the rounding of a logit's few dozen terms.
          EXPECT_NEAR(told.margin, ranked[1].first - ranked[0].first, 1e-4F * largest);
          EXPECT_NEAR(told.largest, largest, 1e-4F * largest);
          tokens.push_back(result.outputs[p][i]);
        }
      }
    });
  }
}

TEST(Scoring, IsThePerplexityOfThePlainForwardPassWithTheSameBitsForEveryRankCount) {
  const TinyModel model({.seed = 67});
  std::vector<std::int32_t> text;
  for (int i = 0; i < 38; ++i) text.push_back(i * 17 % 61);
  for (const int context : {1, 7, 37, 64}) {
    double sum = 0;
    for (std::size_t first = 0; first + 1 < text.size(); first += static_cast<std::size_t>(context)) {
      const std::size_t last = std::min(text.size() - 1, first + static_cast<std::size_t>(context));
      const auto logits = model
                              .forward({text.begin() + static_cast<std::ptrdiff_t>(first),
                                        text.begin() + static_cast<std::ptrdiff_t>(last)})
                              .logits;
      for (std::size_t t = first; t < last; ++t) {
        const auto row = std::span(logits).subspan((t - first) * 61, 61);
        double total = 0;
        for (const float logit : row) total += std::exp(static_cast<double>(logit));
        sum += std::log(total) - static_cast<double>(row[static_cast<std::size_t>(text[t + 1])]);
      }
    }
    std::vector<double> perplexities;
    for (const int ranks : {1, 2, 3}) {
      for (const int batch : {1, 4}) {
        on_engines(model, ranks, [&](Engine& engine, Transport& transport) {
          const ScoreResult result = score(engine, transport, text, context, batch, {}).value();
          EXPECT_EQ(result.tokens, 37);
          if (transport.rank() == 0) perplexities.push_back(result.perplexity);
        });
      }
    }
    EXPECT_NEAR(perplexities[0], std::exp(sum / 37), 1e-4 * perplexities[0]);
    for (const double perplexity : perplexities) EXPECT_EQ(perplexity, perplexities[0]);
  }
}

TEST(Scoring, RecordsTheRoutingOfEveryWindow) {
  const TinyModel model({.seed = 71});
  const std::vector<std::int32_t> text{1, 2, 3, 4, 5, 6, 7, 8};
  on_engines(model, 1, [&](Engine& engine, Transport& transport) {
    EXPECT_TRUE(score(engine, transport, text, 3, 1, {}).ok());
    EXPECT_THAT(engine.take_trace().sequence_offsets, ElementsAre(0, 3, 6, 7));
  });
}

TEST(Scoring, RefusesWhatCannotBeScored) {
  const TinyModel model({});
  on_engines(model, 1, [&](Engine& engine, Transport& transport) {
    const auto error = [&](std::vector<std::int32_t> text, int context, int batch) {
      const auto result = score(engine, transport, text, context, batch, {});
      return result.ok() ? "" : result.error().message;
    };
    EXPECT_THAT(error({1}, 4, 1), HasSubstr("at least 2"));
    EXPECT_THAT(error({1, 2}, 0, 1), HasSubstr("context 0 is outside [1, 64]"));
    EXPECT_THAT(error({1, 2}, 65, 1), HasSubstr("context 65"));
    EXPECT_THAT(error({1, 2}, 4, 0), HasSubstr("windows"));
    EXPECT_THAT(error({1, 61}, 4, 1), HasSubstr("token 1: id 61 is outside [0, 61)"));
  });
}

TEST(ASampler, GivesTiesToTheLowerIdWhenGreedy) {
  Sampler sampler(0, 1, 0, 0);
  EXPECT_EQ(sampler.choose(std::vector<float>{1, 3, 3, 2}), 1);
}

TEST(ASampler, DrawsByProbabilityAndOnlyFromTheNucleus) {
  const std::vector<float> logits{std::log(0.1F), std::log(0.5F), std::log(0.4F)};
  std::vector<int> all(3, 0);
  std::vector<int> nucleus(3, 0);
  Sampler free(1, 1, 1, 0);
  Sampler bound(1, 0.85, 1, 0);
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    ++all[static_cast<std::size_t>(free.choose(logits))];
    ++nucleus[static_cast<std::size_t>(bound.choose(logits))];
  }
  // Six standard deviations of a binomial count are below 0.022 of the draws.
  EXPECT_NEAR(all[0], 0.1 * kDraws, 0.022 * kDraws);
  EXPECT_NEAR(all[1], 0.5 * kDraws, 0.022 * kDraws);
  EXPECT_EQ(nucleus[0], 0);
  EXPECT_NEAR(nucleus[1], 5.0 / 9.0 * kDraws, 0.022 * kDraws);
}

}  // namespace
}  // namespace grace
