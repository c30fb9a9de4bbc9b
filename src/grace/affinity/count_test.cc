#include <gmock/gmock.h>

#include <numeric>
#include <string>

#include "grace/affinity/affinity.h"
#include "grace/base/rng.h"

namespace grace {
namespace {

Trace random_trace(std::uint64_t seed, int num_tokens, int num_layers, int num_experts, int top_k) {
  Rng rng(seed);
  Trace trace;
  trace.num_experts = num_experts;
  trace.experts_per_token = top_k;
  trace.decoder_layers.resize(static_cast<std::size_t>(num_layers));
  std::iota(trace.decoder_layers.begin(), trace.decoder_layers.end(), 1);
  trace.sequence_offsets = {0, num_tokens};
  std::vector<std::uint16_t> ids(static_cast<std::size_t>(num_experts));
  std::iota(ids.begin(), ids.end(), std::uint16_t{0});
  for (int row = 0; row < num_tokens * num_layers; ++row) {
    rng.shuffle(std::span(ids));
    for (int k = 0; k < top_k; ++k)
      trace.topk_ids.push_back(rng.below(8) == 0 ? kNotRouted : ids[static_cast<std::size_t>(k)]);
  }
  return trace;
}

bool chose(const Trace& trace, int token, int layer, int expert) {
  for (int k = 0; k < trace.experts_per_token; ++k) {
    const int at = (token * trace.num_moe_layers() + layer) * trace.experts_per_token + k;
    if (trace.topk_ids[static_cast<std::size_t>(at)] == expert) return true;
  }
  return false;
}

// The definition, spelled out: for each pair, the tokens that chose both.
LayerStats count_slowly(const Trace& trace, int layer) {
  LayerStats stats;
  stats.num_experts = trace.num_experts;
  for (int i = 0; i < trace.num_experts; ++i) {
    std::int64_t alone = 0;
    for (int t = 0; t < trace.num_tokens(); ++t) alone += chose(trace, t, layer, i);
    stats.load.push_back(alone);
    for (int j = 0; j < trace.num_experts; ++j) {
      std::int64_t both = 0;
      for (int t = 0; t < trace.num_tokens() && i != j; ++t)
        both += chose(trace, t, layer, i) && chose(trace, t, layer, j);
      stats.affinity.push_back(both);
    }
  }
  return stats;
}

class ACount : public testing::TestWithParam<std::uint64_t> {};

TEST_P(ACount, EqualsTheTripleLoopAtAnyThreadCount) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  const int num_experts = 1 + static_cast<int>(rng.below(12));
  const int top_k = 1 + static_cast<int>(rng.below(static_cast<std::uint64_t>(num_experts)));
  const Trace trace = random_trace(GetParam(), static_cast<int>(rng.below(60)),
                                   static_cast<int>(rng.below(4)), num_experts, top_k);
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    const std::vector<LayerStats> layers = count_layers(trace, pool);
    ASSERT_EQ(layers.size(), trace.decoder_layers.size());
    for (std::size_t m = 0; m < layers.size(); ++m) {
      const LayerStats slow = count_slowly(trace, static_cast<int>(m));
      EXPECT_EQ(layers[m].num_experts, num_experts);
      EXPECT_EQ(layers[m].affinity, slow.affinity);
      EXPECT_EQ(layers[m].load, slow.load);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ACount, testing::Range<std::uint64_t>(0, 40));

TEST(ACountOfUnroutedTokens, IsZeroEverywhere) {
  Trace trace = random_trace(1, 10, 2, 5, 3);
  std::fill(trace.topk_ids.begin(), trace.topk_ids.end(), kNotRouted);
  ThreadPool pool(2);
  for (const LayerStats& stats : count_layers(trace, pool)) {
    EXPECT_THAT(stats.affinity, testing::Each(0));
    EXPECT_THAT(stats.load, testing::Each(0));
  }
}

TEST(AffinityKept, IsTheShareOfPairsInsideGroups) {
  LayerStats stats;
  stats.num_experts = 3;
  stats.affinity = {0, 5, 3, 5, 0, 2, 3, 2, 0};
  stats.load = {8, 7, 5};
  EXPECT_DOUBLE_EQ(affinity_kept(stats, std::vector<int>{0, 0, 1}), 0.5);
  EXPECT_DOUBLE_EQ(affinity_kept(stats, std::vector<int>{4, 4, 4}), 1.0);
  EXPECT_DOUBLE_EQ(affinity_kept(stats, std::vector<int>{0, 1, 2}), 0.0);
}

TEST(AffinityKept, IsOneWhenThereIsNoPair) {
  LayerStats stats;
  stats.num_experts = 2;
  stats.affinity = {0, 0, 0, 0};
  stats.load = {3, 1};
  EXPECT_DOUBLE_EQ(affinity_kept(stats, std::vector<int>{0, 1}), 1.0);
}

}  // namespace
}  // namespace grace
