#include "grace/planner/judge.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "grace/base/rng.h"
#include "grace/planner/joint/joint_test_util.h"
#include "grace/routing/routing.h"

namespace grace {
namespace {

Trace layers_of_tokens(std::uint64_t seed, int num_tokens, int num_layers) {
  Rng rng(seed);
  const Trace one = joint::random_trace(rng, num_tokens * num_layers, 12, 3);
  Trace trace = one;
  trace.decoder_layers.clear();
  for (int m = 0; m < num_layers; ++m) trace.decoder_layers.push_back(m);
  trace.sequence_offsets = {0};
  while (trace.sequence_offsets.back() < num_tokens)
    trace.sequence_offsets.push_back(std::min<std::int64_t>(
        num_tokens, trace.sequence_offsets.back() + 1 + static_cast<int>(rng.below(30))));
  return trace;
}

Plan random_plan(std::uint64_t seed, const Trace& trace, const Cluster& cluster, std::string routing) {
  Rng rng(seed);
  Plan plan = vanilla_plan(trace.model, trace.num_experts, trace.decoder_layers, cluster);
  const auto devices = static_cast<std::size_t>(cluster.num_devices());
  const std::vector<int> slots(devices,
                               2 + (trace.num_experts + cluster.num_devices() - 1) / cluster.num_devices());
  for (LayerPlan& layer : plan.layers) {
    layer = joint::layer_of(joint::random_hosts(rng, trace.num_experts, slots), devices, {16, 1, {}});
    for (std::size_t d = 0; d < devices; ++d) {
      layer.cover.price.push_back(1 + rng.uniform());
      layer.predicted_load[d] = 1 + rng.uniform();
    }
  }
  plan.routing = std::move(routing);
  return plan;
}

std::vector<int> all_sequences(const Trace& trace) {
  std::vector<int> sequences;
  for (int s = 0; s < trace.num_sequences(); ++s) sequences.push_back(s);
  return sequences;
}

void expect_same(const Figures& a, const Figures& b) {
  EXPECT_DOUBLE_EQ(a.remote_nodes_per_token, b.remote_nodes_per_token);
  EXPECT_DOUBLE_EQ(a.forwards_per_token, b.forwards_per_token);
  EXPECT_DOUBLE_EQ(a.devices_per_token, b.devices_per_token);
  EXPECT_DOUBLE_EQ(a.load_max_over_mean, b.load_max_over_mean);
  EXPECT_DOUBLE_EQ(a.load_std, b.load_std);
  EXPECT_DOUBLE_EQ(a.cross_node_vectors, b.cross_node_vectors);
  EXPECT_DOUBLE_EQ(a.intra_node_vectors, b.intra_node_vectors);
  EXPECT_DOUBLE_EQ(a.time.total_s(), b.time.total_s());
}

// x, y, devices and max/mean of one layer, batch after batch.
Figures judged_slowly(const Plan& plan, const Trace& trace, const JudgeTokens& tokens, const Cluster& cluster,
                      const JudgeOptions& options, int layer) {
  const auto m = static_cast<std::size_t>(layer);
  const std::int64_t devices = cluster.num_devices();
  std::vector<std::unique_ptr<Router>> routers;
  for (int d = 0; d < cluster.num_devices(); ++d)
    routers.push_back(
        make_router(plan.routing, plan.layers[m], trace.num_experts, cluster, DeviceId(d)).value());
  Figures figures;
  figures.load_max_over_mean = 0;
  const auto all = static_cast<std::int64_t>(tokens.rows.size());
  const std::int64_t size = std::min(options.batch, all);
  std::int64_t batches = 0, with_choice = 0;
  for (std::int64_t begin = 0; begin + size <= all; begin += size, ++batches) {
    joint::Routed routed;
    routed.load.assign(static_cast<std::size_t>(devices), 0);
    std::int64_t used = 0;
    for (std::int64_t i = begin; i < begin + size; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if ((i - begin) % (options.feedback_every * devices) == 0)
        for (const auto& router : routers) router->observe(routed.load, size * trace.experts_per_token);
      const auto choices = trace.choices(tokens.rows[at], MoeOrdinal(layer));
      std::vector<std::int32_t> device_of(choices.size());
      routers[tokens.source[at].idx()]->route(choices, trace.experts_per_token, device_of);
      std::erase(device_of, kNoDevice.value);
      joint::add_routed(cluster, tokens.source[at].idx(), device_of, routed);
      with_choice += device_of.empty() ? 0 : 1;
      std::ranges::sort(device_of);
      used += std::unique(device_of.begin(), device_of.end()) - device_of.begin();
    }
    figures.remote_nodes_per_token += static_cast<double>(routed.x);
    figures.forwards_per_token += static_cast<double>(routed.y);
    figures.devices_per_token += static_cast<double>(used);
    figures.load_max_over_mean += max_over_mean(routed.load);
  }
  figures.remote_nodes_per_token /= static_cast<double>(with_choice);
  figures.forwards_per_token /= static_cast<double>(with_choice);
  figures.devices_per_token /= static_cast<double>(with_choice);
  figures.load_max_over_mean /= static_cast<double>(batches);
  return figures;
}

class AJudge : public testing::TestWithParam<const char*> {};

TEST_P(AJudge, SaysWhatItsSlowTwinSaysAtAnyThreadCount) {
  const Trace trace = layers_of_tokens(3, 700, 4);
  const Cluster cluster = joint::cluster_of({2, 3});
  const Plan plan = random_plan(5, trace, cluster, GetParam());
  const JudgeTokens tokens = judge_tokens(trace, all_sequences(trace), 5, 1);
  for (const std::int64_t batch : {1, 64, 256, 700, 5000}) {
    SCOPED_TRACE("batch " + std::to_string(batch));
    JudgeOptions options;
    options.batch = batch;
    options.sizes = {.hidden = 8, .expert_ffn = 4};
    options.feedback_every = 3;
    ThreadPool one(1), three(3);
    const auto figures = judge(plan, trace, tokens, cluster, options, one).value();
    const auto again = judge(plan, trace, tokens, cluster, options, three).value();
    ASSERT_EQ(figures.size(), 4u);
    for (int m = 0; m < 4; ++m) {
      const Figures& got = figures[static_cast<std::size_t>(m)];
      expect_same(got, again[static_cast<std::size_t>(m)]);
      EXPECT_GT(got.time.total_s(), 0);
      const Figures slow = judged_slowly(plan, trace, tokens, cluster, options, m);
      EXPECT_NEAR(got.remote_nodes_per_token, slow.remote_nodes_per_token, 1e-12);
      EXPECT_NEAR(got.forwards_per_token, slow.forwards_per_token, 1e-12);
      EXPECT_NEAR(got.devices_per_token, slow.devices_per_token, 1e-12);
      EXPECT_NEAR(got.load_max_over_mean, slow.load_max_over_mean, 1e-12);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, AJudge, testing::Values("tar", "wrr", "cover", "cover_feedback"));

TEST(TokensToJudge, AreAllOfTheSequencesEachOnOneDeviceInAnOrderOfTheSeed) {
  const Trace trace = layers_of_tokens(8, 500, 1);
  std::vector<int> sequences = all_sequences(trace);
  sequences.erase(sequences.begin() + 1);
  std::ranges::reverse(sequences);
  const JudgeTokens tokens = judge_tokens(trace, sequences, 3, 42);
  ASSERT_EQ(tokens.rows.size(), tokens.source.size());
  std::map<std::int64_t, std::int32_t> source_of_row;
  for (std::size_t i = 0; i < tokens.rows.size(); ++i)
    EXPECT_TRUE(source_of_row.emplace(tokens.rows[i], tokens.source[i].value).second) << "a token twice";
  std::size_t expected = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const auto s = static_cast<std::size_t>(sequences[i]);
    for (std::int64_t row = trace.sequence_offsets[s]; row < trace.sequence_offsets[s + 1]; ++row, ++expected)
      EXPECT_EQ(source_of_row.at(row), static_cast<std::int32_t>(i % 3));
  }
  EXPECT_EQ(source_of_row.size(), expected);
  EXPECT_EQ(judge_tokens(trace, sequences, 3, 42).rows, tokens.rows);
  EXPECT_NE(judge_tokens(trace, sequences, 3, 43).rows, tokens.rows);
  EXPECT_FALSE(std::ranges::is_sorted(tokens.rows));
}

TEST(AJudgeOfBatches, DropsTheShortLastOneUnlessItIsTheOnlyOne) {
  const Trace trace = layers_of_tokens(3, 130, 1);
  const Cluster cluster = joint::cluster_of({2});
  const Plan plan = random_plan(5, trace, cluster, "cover");
  ThreadPool pool(1);
  JudgeTokens tokens = judge_tokens(trace, all_sequences(trace), 2, 1);
  JudgeOptions options;
  options.batch = 64;
  const Figures all = judge(plan, trace, tokens, cluster, options, pool).value().front();
  tokens.rows.resize(128);
  tokens.source.resize(128);
  expect_same(judge(plan, trace, tokens, cluster, options, pool).value().front(), all);
  tokens.rows.resize(40);
  tokens.source.resize(40);
  const Figures few = judge(plan, trace, tokens, cluster, options, pool).value().front();
  options.batch = 40;
  expect_same(judge(plan, trace, tokens, cluster, options, pool).value().front(), few);
  const Figures none = judge(plan, trace, {}, cluster, options, pool).value().front();
  EXPECT_EQ(none.judge(kSlowYardstick), kSlowYardstick.load);
}

TEST(AJudgeOfWhatDoesNotFit, SaysSoInOneLine) {
  const Trace trace = layers_of_tokens(3, 50, 2);
  const Cluster cluster = joint::cluster_of({2});
  ThreadPool pool(1);
  const JudgeTokens tokens = judge_tokens(trace, all_sequences(trace), 2, 1);
  const auto message = [&](const Plan& plan, const Cluster& on) {
    const auto result = judge(plan, trace, tokens, on, {}, pool);
    if (result.ok()) return std::string("no error");
    EXPECT_EQ(result.error().kind, ErrorKind::kInvalidInput);
    EXPECT_THAT(result.error().message, testing::Not(testing::HasSubstr("\n")));
    return result.error().message;
  };
  const Plan plan = random_plan(5, trace, cluster, "cover");
  EXPECT_EQ(message(plan, cluster), "no error");
  EXPECT_THAT(message(plan, joint::cluster_of({3})), testing::HasSubstr("plan: "));
  Plan unknown = plan;
  unknown.routing = "cower";
  EXPECT_THAT(message(unknown, cluster), testing::HasSubstr("cower"));
  Plan shorter = plan;
  shorter.layers.pop_back();
  shorter.decoder_layers.pop_back();
  EXPECT_NE(message(shorter, cluster), "no error");
  Plan incomplete = plan;
  for (auto* lists : {&incomplete.layers[1].primaries_of_device, &incomplete.layers[1].replicas_of_device})
    for (std::vector<ExpertId>& list : *lists) std::erase(list, ExpertId(4));
  EXPECT_THAT(message(incomplete, cluster), testing::HasSubstr("expert 4"));
}

}  // namespace
}  // namespace grace
