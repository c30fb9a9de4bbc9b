#include "grace/trace/trace.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "grace/base/rng.h"
#include "grace/files/mapped_file.h"
#include "grace/files/safetensors.h"
#include "grace/trace/trace_test_util.h"

namespace grace {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

TEST(ATrace, GivesTheChoicesOfATokenInALayer) {
  const Trace trace = small_trace();
  EXPECT_THAT(trace.choices(0, MoeOrdinal(0)), ElementsAre(0, 1));
  EXPECT_THAT(trace.choices(1, MoeOrdinal(1)), ElementsAre(1, kNotRouted));
  EXPECT_EQ(trace.num_tokens(), 3);
  EXPECT_EQ(trace.num_sequences(), 2);
}

TEST(ATrace, KnowsWhichTokensWerePrompt) {
  Trace trace = small_trace();
  EXPECT_EQ(trace.prompt_length(1), 2);
  trace.phase = Phase::kDecode;
  EXPECT_EQ(trace.prompt_length(1), 0);
  trace.phase = Phase::kMixed;
  trace.prompt_lengths = {1, 1};
  EXPECT_EQ(trace.prompt_length(1), 1);
}

struct Corruption {
  const char* expected;
  std::function<void(Trace&)> apply;
};

const Corruption kCorruptions[] = {
    {"num_experts 65535 is outside [1, 65534]", [](Trace& t) { t.num_experts = 65535; }},
    {"num_experts -1 is outside", [](Trace& t) { t.num_experts = -1; }},
    {"experts_per_token 5 is outside [1, 4]", [](Trace& t) { t.experts_per_token = 5; }},
    {"experts_per_token 0 is outside", [](Trace& t) { t.experts_per_token = 0; }},
    {"decoder_layers is empty", [](Trace& t) { t.decoder_layers.clear(); }},
    {"decoder_layers[1] is 1, outside [2, ", [](Trace& t) { t.decoder_layers[1] = 1; }},
    {"sequence_offsets does not begin with 0", [](Trace& t) { t.sequence_offsets.clear(); }},
    {"sequence_offsets does not begin with 0", [](Trace& t) { t.sequence_offsets[0] = -1; }},
    {"sequence_offsets[2] is 0, below the 1 before it", [](Trace& t) { t.sequence_offsets[2] = 0; }},
    {"topk_ids has 12 values, 4 tokens have 4 each", [](Trace& t) { t.sequence_offsets[2] = 4; }},
    {"phase is mixed, but there are no prompt_lengths", [](Trace& t) { t.phase = Phase::kMixed; }},
    {"1 prompt_lengths, but 2 sequences", [](Trace& t) { t.prompt_lengths = {1}; }},
    {"prompt_lengths[1] is 3, outside [0, 2]",
     [](Trace& t) {
       t.prompt_lengths = {1, 3};
     }},
    {"token 1, layer 1: expert 4 is outside [0, 4)", [](Trace& t) { t.topk_ids[6] = 4; }},
    {"token 0, layer 1: expert 2 is chosen twice", [](Trace& t) { t.topk_ids[3] = 2; }},
    {"topk_weights has 1 values", [](Trace& t) { t.topk_weights = {1}; }},
    {"token 1, layer 1: weight nan is outside",
     [](Trace& t) { t.topk_weights.assign(12, 1), t.topk_weights[7] = std::nanf(""); }},
    {"token 0, layer 0: weight 65536 is outside",
     [](Trace& t) { t.topk_weights.assign(12, 1), t.topk_weights[1] = 65536; }},
    {"token_ids has 2 values",
     [](Trace& t) {
       t.token_ids = {1, 2};
     }},
    {"token 2: token id -1 is negative",
     [](Trace& t) {
       t.token_ids = {1, 2, -1};
     }},
};

TEST(ATrace, NamesEachCorruption) {
  for (const Corruption& corruption : kCorruptions) {
    Trace trace = small_trace();
    ASSERT_THAT(violations(trace), IsEmpty());
    corruption.apply(trace);
    EXPECT_THAT(violations(trace), Contains(HasSubstr(corruption.expected)));
  }
}

TEST(ATrace, NamesTheOneChoiceThatIsWrong) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    Trace trace = random_trace(rng);
    const std::size_t at = rng.below(trace.topk_ids.size());
    trace.topk_ids[at] = static_cast<std::uint16_t>(trace.num_experts);
    const std::size_t row = at / static_cast<std::size_t>(trace.experts_per_token);
    EXPECT_THAT(violations(trace),
                ElementsAre("token " + std::to_string(row / trace.decoder_layers.size()) + ", layer " +
                            std::to_string(row % trace.decoder_layers.size()) + ": expert " +
                            std::to_string(trace.num_experts) + " is outside [0, " +
                            std::to_string(trace.num_experts) + ")"));
  }
}

TEST(ATrace, StopsCountingFaultsAtTwenty) {
  Rng rng(1);
  Trace trace = random_trace(rng);
  trace.topk_ids.assign(trace.topk_ids.size() * 40, static_cast<std::uint16_t>(trace.num_experts));
  trace.topk_weights.clear(), trace.token_ids.clear(), trace.prompt_lengths.clear();
  trace.phase = Phase::kDecode;
  trace.sequence_offsets = {0, trace.num_tokens() * 40};
  EXPECT_THAT(violations(trace), SizeIs(20));
}

TEST(ATrace, SelectsSequencesInTheOrderAsked) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const Trace trace = random_trace(rng);
    std::vector<int> asked;
    for (std::uint64_t i = 0, count = rng.below(6); i < count; ++i)
      asked.push_back(static_cast<int>(rng.below(static_cast<std::uint64_t>(trace.num_sequences()))));
    const Trace part = select_sequences(trace, asked);
    ASSERT_THAT(violations(part), IsEmpty());
    ASSERT_EQ(part.num_sequences(), static_cast<int>(asked.size()));
    std::int64_t row = 0;  // the slow twin: walk through the tokens one by one
    for (const int sequence : asked) {
      const auto s = static_cast<std::size_t>(sequence);
      for (std::int64_t token = trace.sequence_offsets[s]; token < trace.sequence_offsets[s + 1];
           ++token, ++row) {
        for (int layer = 0; layer < trace.num_moe_layers(); ++layer) {
          const auto expected = trace.choices(token, MoeOrdinal(layer));
          ASSERT_TRUE(std::ranges::equal(part.choices(row, MoeOrdinal(layer)), expected));
        }
        if (!trace.token_ids.empty()) {
          ASSERT_EQ(part.token_ids[static_cast<std::size_t>(row)],
                    trace.token_ids[static_cast<std::size_t>(token)]);
        }
      }
    }
    EXPECT_EQ(part.num_tokens(), row);
  }
}

TEST(ATrace, OfAllItsSequencesIsItself) {
  Rng rng(3);
  const Trace trace = random_trace(rng);
  std::vector<int> all(static_cast<std::size_t>(trace.num_sequences()));
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(select_sequences(trace, all), trace);
}

TEST(ASplit, DealsEachSequenceOnceInTheSharesAsked) {
  for (const int count : {0, 1, 2, 7, 40, 1001}) {
    const auto parts = split_sequences(count, std::vector{0.4, 0.1, 0.5}, 1);
    ASSERT_THAT(parts, SizeIs(3));
    std::vector<int> all;
    for (const auto& part : parts) {
      EXPECT_TRUE(std::ranges::is_sorted(part));
      all.insert(all.end(), part.begin(), part.end());
    }
    std::ranges::sort(all);
    ASSERT_THAT(all, SizeIs(static_cast<std::size_t>(count)));
    for (int i = 0; i < count; ++i) EXPECT_EQ(all[static_cast<std::size_t>(i)], i);
    EXPECT_NEAR(static_cast<double>(parts[0].size()), 0.4 * count, 1);
    EXPECT_NEAR(static_cast<double>(parts[2].size()), 0.5 * count, 1);
  }
}

TEST(ASplit, DependsOnTheSeedAlone) {
  const std::vector shares{0.5, 0.5};
  EXPECT_EQ(split_sequences(100, shares, 7), split_sequences(100, shares, 7));
  EXPECT_NE(split_sequences(100, shares, 7), split_sequences(100, shares, 8));
  EXPECT_THAT(split_sequences(5, std::vector{1.0}, 0), ElementsAre(ElementsAre(0, 1, 2, 3, 4)));
}

TEST(AHash, ChangesWithEveryIdAndWithTheShape) {
  const Trace trace = small_trace();
  EXPECT_THAT(hash_of(trace), AllOf(SizeIs(16), Not(HasSubstr(" "))));
  for (std::size_t i = 0; i < trace.topk_ids.size(); ++i) {
    Trace other = trace;
    other.topk_ids[i] ^= 1;
    EXPECT_NE(hash_of(other), hash_of(trace));
  }
  Trace wider = trace;
  wider.num_experts = 5;
  EXPECT_NE(hash_of(wider), hash_of(trace));
  Trace renamed = trace;
  renamed.model = "other";
  EXPECT_EQ(hash_of(renamed), hash_of(trace));
}

TEST(AHash, IsFnv1a) {
  // By the definition, with the bytes spelt out: T = 0, M = 0, K = 0, E = 1.
  Trace empty;
  empty.num_experts = 1;
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (int i = 0; i < 32; ++i) hash = (hash ^ (i == 24 ? 1U : 0U)) * 0x100000001b3ULL;
  char expected[17];
  std::snprintf(expected, sizeof expected, "%016llx", static_cast<unsigned long long>(hash));
  EXPECT_EQ(hash_of(empty), expected);
}

TEST(JoinedTraces, HoldTheirSequencesInOrder) {
  const Trace one = small_trace();
  Trace other = small_trace();
  other.source = "elsewhere";
  other.phase = Phase::kDecode;
  const std::vector<Trace> both{one, other};
  const Trace joined = join_traces(both).value();
  EXPECT_THAT(violations(joined), IsEmpty());
  EXPECT_EQ(joined.num_sequences(), 4);
  EXPECT_EQ(joined.num_tokens(), 6);
  EXPECT_EQ(joined.phase, Phase::kMixed);
  EXPECT_EQ(joined.prompt_length(0), one.prompt_length(0));
  EXPECT_EQ(joined.prompt_length(2), 0);
  const std::vector<int> second{2, 3};
  EXPECT_EQ(select_sequences(joined, second).topk_ids, other.topk_ids);
}

TEST(JoinedTraces, MustBeOfOneShape) {
  Trace other = small_trace();
  other.num_experts = 8;
  const std::vector<Trace> both{small_trace(), other};
  EXPECT_THAT(join_traces(both).error().message, HasSubstr("8 experts"));
  EXPECT_FALSE(join_traces({}).ok());
}

TEST(TheFirstLayersOfATrace, AreWhatTheyWereAndNoMore) {
  Trace trace;
  trace.model = "m";
  trace.num_experts = 8;
  trace.experts_per_token = 2;
  trace.decoder_layers = {1, 2, 3};
  trace.sequence_offsets = {0, 2};
  trace.topk_ids = {0, 1, 2, 3, 4, 5, 6, 7, 1, 0, 3, 2};
  const Trace part = first_layers(trace, 2);
  EXPECT_THAT(violations(part), testing::IsEmpty());
  EXPECT_THAT(part.decoder_layers, testing::ElementsAre(1, 2));
  EXPECT_THAT(part.topk_ids, testing::ElementsAre(0, 1, 2, 3, 6, 7, 1, 0));
  EXPECT_EQ(first_layers(trace, 3), trace);
}

}  // namespace
}  // namespace grace
