#include "grace/trace/synthetic.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace grace {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

Trace make(const SyntheticOptions& options, int threads = 1) {
  ThreadPool pool(threads);
  return synthetic_trace(options, pool).value();
}

// Options that plant nothing but clusters: one topic, uniform weights.
SyntheticOptions plain() {
  SyntheticOptions options;
  options.moe_layers = 2;
  options.num_experts = 32;
  options.experts_per_token = 4;
  options.tokens = 20'000;
  options.sequence_length = 100;
  options.clusters = 4;
  options.zipf = 0;
  options.topics = 1;
  options.seed = 7;
  return options;
}

// [E] tokens of [begin, end) that chose each expert in a layer.
std::vector<double> loads_of(const Trace& trace, int layer, std::int64_t begin, std::int64_t end) {
  std::vector<double> loads(static_cast<std::size_t>(trace.num_experts));
  for (std::int64_t t = begin; t < end; ++t)
    for (const std::uint16_t e : trace.choices(t, MoeOrdinal(layer))) ++loads[e];
  return loads;
}

// The mean over pairs of one cluster, and over pairs of two clusters, of how often both are chosen.
std::pair<double, double> pairs_within_and_across(const Trace& trace, const std::vector<int>& cluster_of,
                                                  int layer) {
  const auto n = static_cast<std::size_t>(trace.num_experts);
  std::vector<double> together(n * n);
  for (std::int64_t t = 0; t < trace.num_tokens(); ++t)
    for (const std::uint16_t a : trace.choices(t, MoeOrdinal(layer)))
      for (const std::uint16_t b : trace.choices(t, MoeOrdinal(layer))) together[a * n + b] += a < b ? 1 : 0;
  double sums[2] = {}, counts[2] = {};
  for (std::size_t a = 0; a < n; ++a)
    for (std::size_t b = a + 1; b < n; ++b) {
      const int across = cluster_of[a] == cluster_of[b] ? 0 : 1;
      sums[across] += together[a * n + b];
      ++counts[across];
    }
  return {sums[0] / counts[0], sums[1] / counts[1]};
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  const double sum_a = std::accumulate(a.begin(), a.end(), 0.0);
  const double sum_b = std::accumulate(b.begin(), b.end(), 0.0);
  double total = 0;
  for (std::size_t i = 0; i < a.size(); ++i) total += std::abs(a[i] / sum_a - b[i] / sum_b);
  return total / 2;  // total variation, [0, 1]
}

TEST(ASyntheticTrace, MakesPlantedPairsFireTogether) {
  SyntheticOptions options = plain();
  options.strength = 0.6;
  const Trace trace = make(options);
  for (int layer = 0; layer < 2; ++layer) {
    const auto cluster_of = planted_cluster_of_expert(options, MoeOrdinal(layer));
    const auto [within, across] = pairs_within_and_across(trace, cluster_of, layer);
    EXPECT_GT(within, 4 * across);
  }
  EXPECT_NE(planted_cluster_of_expert(options, MoeOrdinal(0)),
            planted_cluster_of_expert(options, MoeOrdinal(1)));
}

TEST(ASyntheticTrace, StaysInOneClusterAtFullStrength) {
  SyntheticOptions options = plain();
  options.strength = 1;
  const Trace trace = make(options);
  const auto cluster_of = planted_cluster_of_expert(options, MoeOrdinal(1));
  for (std::int64_t t = 0; t < trace.num_tokens(); ++t) {
    const auto row = trace.choices(t, MoeOrdinal(1));
    ASSERT_TRUE(std::ranges::all_of(row, [&](auto e) { return cluster_of[e] == cluster_of[row[0]]; })) << t;
  }
}

TEST(ASyntheticTrace, PlantsNothingAtNoStrength) {
  SyntheticOptions options = plain();
  options.strength = 0;
  const Trace trace = make(options);
  const auto [within, across] =
      pairs_within_and_across(trace, planted_cluster_of_expert(options, MoeOrdinal(0)), 0);
  EXPECT_NEAR(within / across, 1, 0.05);
}

TEST(ASyntheticTrace, GivesClustersOfEqualSizeToWithinOne) {
  SyntheticOptions options = plain();
  options.num_experts = 30;
  std::vector<int> sizes(4);
  for (const int cluster : planted_cluster_of_expert(options, MoeOrdinal(0)))
    ++sizes[static_cast<std::size_t>(cluster)];
  EXPECT_THAT(sizes, ElementsAre(8, 8, 7, 7));
}

// The slope of log(load) over log(rank), weighted by load, which the noise of the rare ones cannot bend.
double zipf_slope(std::vector<double> loads) {
  std::ranges::sort(loads, std::greater());
  double w = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (std::size_t rank = 0; rank < loads.size() && loads[rank] > 0; ++rank) {
    const double weight = loads[rank], lx = std::log(1.0 + static_cast<double>(rank)), ly = std::log(weight);
    w += weight, x += weight * lx, y += weight * ly, xx += weight * lx * lx, xy += weight * lx * ly;
  }
  return (w * xy - x * y) / (w * xx - x * x);
}

TEST(ASyntheticTrace, LoadsFirstChoicesByZipf) {
  for (const double zipf : {0.5, 1.0, 1.5}) {
    SyntheticOptions options = plain();
    options.experts_per_token = 1;
    options.tokens = 100'000;
    options.zipf = zipf;
    EXPECT_NEAR(zipf_slope(loads_of(make(options), 0, 0, options.tokens)), -zipf, 0.03) << zipf;
  }
}

// Twin: the probability of each set of three of five experts, from the contract's two steps by enumeration.
TEST(ASyntheticTrace, DrawsAsItsContractSays) {
  SyntheticOptions options = plain();
  options.num_experts = 5;
  options.experts_per_token = 3;
  options.clusters = 2;
  options.strength = 0.7;
  options.zipf = 2;
  options.tokens = 200'000;
  const auto cluster_of = planted_cluster_of_expert(options, MoeOrdinal(0));
  const Trace trace = make(options);
  // The weights as the first choices show them: exact up to noise of 1/sqrt(T).
  std::vector<double> weights(5);
  std::vector<double> counted(125), expected(125);
  for (std::int64_t t = 0; t < options.tokens; ++t) {
    const auto row = trace.choices(t, MoeOrdinal(0));
    weights[row[0]] += 1.0 / static_cast<double>(options.tokens);
    counted[row[0] * 25U + row[1] * 5U + row[2]] += 1.0 / static_cast<double>(options.tokens);
  }
  const auto share = [&](std::size_t e, std::initializer_list<std::size_t> taken) {
    const auto is_free = [&](std::size_t i) { return std::ranges::find(taken, i) == taken.end(); };
    const int home = cluster_of[*taken.begin()];
    double all = 0, near = 0;
    for (std::size_t i = 0; i < 5; ++i) {
      all += is_free(i) ? weights[i] : 0;
      near += is_free(i) && cluster_of[i] == home ? weights[i] : 0;
    }
    if (!is_free(e)) return 0.0;
    if (near == 0) return weights[e] / all;
    return 0.3 * weights[e] / all + (cluster_of[e] == home ? 0.7 * weights[e] / near : 0);
  };
  for (std::size_t a = 0; a < 5; ++a)
    for (std::size_t b = 0; b < 5; ++b)
      for (std::size_t c = 0; c < 5; ++c)
        expected[a * 25 + b * 5 + c] = weights[a] * share(b, {a}) * share(c, {a, b});
  EXPECT_NEAR(std::accumulate(expected.begin(), expected.end(), 0.0), 1, 1e-9);
  for (std::size_t i = 0; i < 125; ++i) EXPECT_NEAR(counted[i], expected[i], 0.006) << i;
}

TEST(ASyntheticTrace, TellsTopicsApart) {
  SyntheticOptions options = plain();
  options.topics = 2;
  options.topic_strength = 0.8;
  options.mixing = 0;
  const Trace trace = make(options);
  const auto topics = planted_topic_of_sequence(options);
  ASSERT_THAT(topics, SizeIs(200));
  std::vector<std::vector<double>> halves[2];  // by topic: loads of its even and odd sequences
  for (auto& half : halves) half.assign(2, std::vector<double>(32));
  for (std::size_t s = 0; s < topics.size(); ++s) {
    const auto begin = trace.sequence_offsets[s];
    const auto loads = loads_of(trace, 0, begin, trace.sequence_offsets[s + 1]);
    auto& sum = halves[topics[s]][s % 2];
    for (std::size_t e = 0; e < 32; ++e) sum[e] += loads[e];
  }
  EXPECT_GT(distance(halves[0][0], halves[1][0]), 0.3);
  EXPECT_LT(distance(halves[0][0], halves[0][1]), 0.05);
}

TEST(ASyntheticTrace, ChangesItsLoadsFromFirstToLastTenthOnlyWithDrift) {
  SyntheticOptions options = plain();
  options.topics = 4;
  options.topic_strength = 0.9;
  options.tokens = 100'000;
  const auto change = [&] {
    const Trace trace = make(options);
    return distance(loads_of(trace, 0, 0, 10'000), loads_of(trace, 0, 90'000, 100'000));
  };
  options.drift = 0;
  const double still = change();
  options.drift = 1;
  EXPECT_GT(change(), 2 * still + 0.05);
}

TEST(ASyntheticTrace, HasTheSameBytesAtAnyNumberOfThreads) {
  SyntheticOptions options = plain();
  options.topics = 3;
  options.drift = 0.5;
  options.phase = Phase::kMixed;
  const Trace one = make(options, 1);
  EXPECT_EQ(one, make(options, 2));
  EXPECT_EQ(one, make(options, 8));
  options.seed = 8;
  EXPECT_NE(hash_of(one), hash_of(make(options)));
}

TEST(ASyntheticTrace, IsSoundForOddOptions) {
  const std::function<void(SyntheticOptions&)> changes[] = {
      [](auto& o) { o.num_experts = o.experts_per_token = o.clusters = 1; },
      [](auto& o) { o.num_experts = o.experts_per_token = 32; },
      [](auto& o) { o.num_experts = o.experts_per_token = 32, o.zipf = 4, o.strength = 1; },
      [](auto& o) { o.tokens = 1; },
      [](auto& o) { o.tokens = 0; },
      [](auto& o) { o.tokens = 513, o.sequence_length = 512; },
      [](auto& o) { o.sequence_length = 1; },
      [](auto& o) { o.sequence_length = 1'000'000; },
      [](auto& o) { o.clusters = 1; },
      [](auto& o) { o.clusters = 32, o.strength = 1; },
      [](auto& o) { o.clusters = 5, o.topics = 7, o.drift = 1; },
      [](auto& o) { o.topics = 4096, o.topic_strength = 1, o.mixing = 1; },
      [](auto& o) { o.zipf = 4; },
      [](auto& o) { o.num_experts = 65'534, o.clusters = 65'534, o.tokens = 100; },
      [](auto& o) { o.dense_layers = 3, o.phase = Phase::kDecode; },
      [](auto& o) { o.phase = Phase::kMixed, o.prompt_length = 1'000'000; },
  };
  for (std::size_t i = 0; i < std::size(changes); ++i) {
    SyntheticOptions options = plain();
    options.tokens = 2'000;
    changes[i](options);
    const Trace trace = make(options, 2);
    EXPECT_THAT(violations(trace), IsEmpty()) << i;
    EXPECT_EQ(trace.num_tokens(), options.tokens) << i;
    EXPECT_THAT(planted_topic_of_sequence(options), SizeIs(trace.num_sequences())) << i;
    EXPECT_EQ(trace.decoder_layers.front(), options.dense_layers) << i;
    for (const std::uint16_t e : trace.topk_ids) ASSERT_LT(e, options.num_experts) << i;
  }
}

TEST(ASyntheticTrace, ChoosesEveryExpertOnceWhereATokenChoosesAll) {
  SyntheticOptions options = plain();
  options.experts_per_token = 32;
  options.tokens = 50;
  EXPECT_THAT(loads_of(make(options), 0, 0, 50), Each(50));
}

TEST(ASyntheticTrace, HasPromptsOfPhaseMixedWithinItsSequences) {
  SyntheticOptions options = plain();
  options.phase = Phase::kMixed;
  options.prompt_length = 30;
  options.tokens = 20'050;
  const Trace trace = make(options);
  ASSERT_THAT(trace.prompt_lengths, SizeIs(201));
  EXPECT_EQ(*std::ranges::min_element(trace.prompt_lengths), 1);
  EXPECT_EQ(*std::ranges::max_element(trace.prompt_lengths), 30);
}

struct Refusal {
  const char* expected;
  std::function<void(SyntheticOptions&)> apply;
};

const Refusal kRefusals[] = {
    {"moe_layers: 0 is outside [1, 10000]", [](auto& o) { o.moe_layers = 0; }},
    {"dense_layers: -1 is outside [0, 10000]", [](auto& o) { o.dense_layers = -1; }},
    {"num_experts: 65535 is outside [1, 65534]", [](auto& o) { o.num_experts = 65535; }},
    {"experts_per_token: 33 is outside [1, 32]", [](auto& o) { o.experts_per_token = 33; }},
    {"tokens: -1 is outside [0, 1073741824]", [](auto& o) { o.tokens = -1; }},
    {"tokens: 1073741825 is outside", [](auto& o) { o.tokens = 1'073'741'825; }},
    {"sequence_length: 0 is outside [1, ", [](auto& o) { o.sequence_length = 0; }},
    {"clusters: 33 is outside [1, 32]", [](auto& o) { o.clusters = 33; }},
    {"strength: 1.5 is outside [0, 1]", [](auto& o) { o.strength = 1.5; }},
    {"zipf: nan is outside [0, 4]", [](auto& o) { o.zipf = std::nan(""); }},
    {"topics: 0 is outside [1, 4096]", [](auto& o) { o.topics = 0; }},
    {"topic_strength: -0.1 is outside [0, 1]", [](auto& o) { o.topic_strength = -0.1; }},
    {"mixing: 2 is outside [0, 1]", [](auto& o) { o.mixing = 2; }},
    {"drift: 0.5 needs at least 2 topics, there is 1", [](auto& o) { o.drift = 0.5; }},
    {"prompt_length: 0 is outside [1, ", [](auto& o) { o.prompt_length = 0; }},
};

TEST(ASyntheticTrace, RefusesOptionsOutsideTheirBounds) {
  ThreadPool pool(1);
  for (const Refusal& refusal : kRefusals) {
    SyntheticOptions options = plain();
    refusal.apply(options);
    const Result<Trace> made = synthetic_trace(options, pool);
    ASSERT_FALSE(made.ok()) << refusal.expected;
    EXPECT_EQ(made.error().kind, ErrorKind::kInvalidInput);
    EXPECT_THAT(made.error().message, HasSubstr(refusal.expected));
  }
}

}  // namespace
}  // namespace grace
