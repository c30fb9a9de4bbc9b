#include "grace/runtime/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string>

#include "grace/routing/routing.h"
#include "grace/runtime/test_plans.h"
#include "grace/runtime/tiny_model.h"

namespace grace {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::chrono::milliseconds kTimeout{60000};
constexpr Dispatch kDispatches[] = {Dispatch::kFlat, Dispatch::kPerDevice, Dispatch::kTwoStage,
                                    Dispatch::kPadded, Dispatch::kAllGather};

std::vector<std::int32_t> random_tokens(Rng& rng, int count, int vocab) {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < count; ++i)
    tokens.push_back(static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(vocab))));
  return tokens;
}

// What one rank saw.
struct Seen {
  std::vector<std::vector<float>> logits;  // [steps], each for all new tokens
  std::vector<LayerCounters> counters;
  Trace trace;
};

// One sequence per rank (none where its tokens are empty): all but `decoded` tokens at once, the others one
// by one.
std::vector<Seen> run_engine(const TinyModel& model, const Plan& plan, const Cluster& cluster,
                             Dispatch dispatch, int threads,
                             const std::vector<std::vector<std::int32_t>>& tokens_of_rank, int decoded,
                             EngineOptions how = {}) {
  how.dispatch = dispatch;
  how.record_trace = true;
  std::vector<Seen> seen(tokens_of_rank.size());
  const Status status = run_in_process(cluster.num_devices(), kTimeout, [&](Transport& transport) -> Status {
    ThreadPool pool(threads);
    const auto engine = GRACE_TRY(Engine::make(model.folder(), plan, cluster, transport, pool, how));
    const auto rank = static_cast<std::size_t>(transport.rank());
    const std::vector<std::int32_t>& tokens = tokens_of_rank[rank];
    engine->reset(1);
    const std::size_t prompt = tokens.size() - std::min(tokens.size(), static_cast<std::size_t>(decoded));
    for (int step = 0; step <= decoded; ++step) {
      const std::size_t first = step == 0 ? 0 : prompt + static_cast<std::size_t>(step) - 1;
      const std::size_t last = prompt + static_cast<std::size_t>(step);
      StepInput input;
      if (last <= tokens.size() && last > first) {
        input = {{0},
                 {tokens.begin() + static_cast<std::ptrdiff_t>(first),
                  tokens.begin() + static_cast<std::ptrdiff_t>(last)},
                 {static_cast<int>(last - first)}};
      }
      const Status stepped = engine->step(input, true, seen[rank].logits.emplace_back());
      if (!stepped.ok()) return stepped;
    }
    seen[rank].counters.assign(engine->counters().begin(), engine->counters().end());
    seen[rank].trace = engine->take_trace();
    return {};
  });
  EXPECT_TRUE(status.ok()) << status.error().message;
  return seen;
}

std::vector<float> joined(const std::vector<std::vector<float>>& parts) {
  std::vector<float> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

void expect_close(const std::vector<float>& got, std::span<const float> expected, double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  double largest = 0;
  double difference = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
    const double d = std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i]));
    if (!(d <= difference)) difference = d;
  }
  EXPECT_LE(difference, tolerance * largest);
}

TEST(AnEngine, GivesTheLogitsAndRoutesOfThePlainForwardPass) {
  for (const bool normalise : {false, true}) {
    const TinyModel model({.normalise = normalise, .seed = 3});
    const Cluster cluster = cluster_of("1x1");
    Rng rng(5);
    const auto tokens = random_tokens(rng, 23, model.shape().vocab);
    const TinyModel::Answer answer = model.forward(tokens);
    for (const int decoded : {0, 22}) {
      const auto seen =
          run_engine(model, vanilla(model, cluster), cluster, Dispatch::kFlat, 2, {tokens}, decoded);
      expect_close(joined(seen[0].logits), answer.logits, 1e-4);
      EXPECT_THAT(violations(seen[0].trace), IsEmpty());
      EXPECT_EQ(seen[0].trace.topk_ids, answer.ids);
      expect_close(seen[0].trace.topk_weights, answer.weights, 1e-4);
      EXPECT_EQ(seen[0].trace.token_ids, tokens);
      EXPECT_EQ(seen[0].trace.prompt_length(0), 23 - decoded);
      EXPECT_EQ(seen[0].trace.phase, decoded == 0 ? Phase::kPrefill : Phase::kMixed);
    }
  }
}

// Replays the trace of each rank through the routing and counts what travels, without the cost room's help.
LayerTraffic brute_traffic(const std::vector<Seen>& seen, const Plan& plan, const Cluster& cluster,
                           Dispatch dispatch, Combine combine, std::size_t layer, int hidden) {
  LayerTraffic traffic;
  traffic.load.assign(seen.size(), 0);
  const auto carry = [&](std::int32_t from, std::int32_t to, std::int64_t assignments) {
    if (from == to) return;
    const bool exact = combine == Combine::kExact;
    const bool near = cluster.node_of(DeviceId{from}) == cluster.node_of(DeviceId{to});
    (near ? traffic.dispatch.intra_node_payload : traffic.dispatch.cross_node_payload) += 4 * hidden;
    (near ? traffic.dispatch.intra_node_header : traffic.dispatch.cross_node_header) +=
        8 + assignments * (exact ? 4 : 8);
    (near ? traffic.combine.intra_node_payload : traffic.combine.cross_node_payload) +=
        4 * hidden * (exact ? assignments : 1);
  };
  for (std::size_t source = 0; source < seen.size(); ++source) {
    const Trace& trace = seen[source].trace;
    const int top = trace.experts_per_token;
    const DeviceId from{static_cast<std::int32_t>(source)};
    const auto router =
        make_router(plan.routing, plan.layers[layer], plan.num_experts, cluster, from).value();
    for (std::int64_t t = 0; t < trace.num_tokens(); ++t) {
      std::vector<std::int32_t> devices(static_cast<std::size_t>(top));
      router->route(trace.choices(t, MoeOrdinal{static_cast<std::int32_t>(layer)}), top, devices);
      std::map<std::int32_t, std::int64_t> of_device, of_node;
      for (const std::int32_t device : devices) {
        ++traffic.load[static_cast<std::size_t>(device)];
        ++of_device[device];
        ++of_node[cluster.node_of(DeviceId{device}).value];
        if (dispatch == Dispatch::kFlat) carry(from.value, device, 1);
      }
      if (dispatch == Dispatch::kPerDevice)
        for (const auto& [device, count] : of_device) carry(from.value, device, count);
      if (dispatch == Dispatch::kAllGather)
        for (std::int32_t d = 0; d < cluster.num_devices(); ++d) carry(from.value, d, of_device[d]);
      if (dispatch != Dispatch::kTwoStage) continue;
      for (const auto& [node, count] : of_node)
        carry(from.value, cluster.entry_of(NodeId{node}, from).value, count);
      for (const auto& [device, count] : of_device)
        carry(cluster.entry_of(cluster.node_of(DeviceId{device}), from).value, device, count);
    }
  }
  return traffic;
}

void expect_counted_as_predicted(const std::vector<Seen>& seen, const Plan& plan, const Cluster& cluster,
                                 Dispatch dispatch, const TinyShape& shape,
                                 Combine combine = Combine::kExact) {
  // What is padded depends on what travels at the same time; the simulator's replay is compared elsewhere.
  if (dispatch == Dispatch::kPadded) return;
  std::int64_t tokens = 0;
  std::int64_t assignments = 0;
  for (std::size_t layer = 0; layer < plan.layers.size(); ++layer) {
    const LayerTraffic brute = brute_traffic(seen, plan, cluster, dispatch, combine, layer, shape.hidden);
    LevelBytes sent;
    LevelBytes returned;
    for (std::size_t rank = 0; rank < seen.size(); ++rank) {
      const LayerCounters& counters = seen[rank].counters[layer];
      sent += counters.dispatch;
      returned += counters.combine;
      tokens += counters.tokens;
      assignments += counters.assignments;
      EXPECT_EQ(counters.assignments, brute.load[rank]);
    }
    EXPECT_EQ(sent, brute.dispatch);
    EXPECT_EQ(returned, brute.combine);
  }
  // Each (token, expert) is computed once in the whole cluster, copies or not.
  EXPECT_EQ(assignments, tokens * shape.top);
}

// What must not change the bits.
EngineOptions some_way(Rng& rng) {
  constexpr Overlap kOverlaps[] = {Overlap::kOff, Overlap::kWherePays, Overlap::kAlways};
  return {.overlap = kOverlaps[rng.below(3)],
          .parts = static_cast<int>(rng.below(kMostParts + 1)),
          .aligned = rng.below(4) == 0};
}

TEST(AnEngine, HasTheSameBitsForEveryPlanRankCountDispatchAndThreadCount) {
  const TinyModel model({.seed = 7});
  Rng rng(11);
  const auto tokens = random_tokens(rng, 19, model.shape().vocab);
  const Cluster one = cluster_of("1x1");
  const auto alone =
      joined(run_engine(model, vanilla(model, one), one, Dispatch::kFlat, 1, {tokens}, 3)[0].logits);
  for (const char* spec : {"1x1", "1x2", "2x1", "1x3", "2x2", "1x4", "3x1", "1+2", "3+1", "4x2", "2x4"}) {
    const Cluster cluster = cluster_of(spec);
    std::vector<std::vector<std::int32_t>> tokens_of_rank(static_cast<std::size_t>(cluster.num_devices()));
    for (std::size_t rank = 0; rank < tokens_of_rank.size(); ++rank)
      tokens_of_rank[rank] = rank % 2 == 0 ? tokens : random_tokens(rng, 5, model.shape().vocab);
    for (const Plan& plan :
         {vanilla(model, cluster), shuffled(model, cluster, 13), doubled(model, cluster, 17)}) {
      ASSERT_THAT(violations(plan, cluster), IsEmpty());
      for (const Dispatch dispatch : kDispatches) {
        SCOPED_TRACE(std::string(spec) + ", " + std::string(name_of(dispatch)) + ", " +
                     std::to_string(plan.max_slots(DeviceId{0})) + " slots");
        const EngineOptions how = some_way(rng);
        const auto seen = run_engine(model, plan, cluster, dispatch, dispatch == Dispatch::kFlat ? 1 : 2,
                                     tokens_of_rank, 3, how);
        for (std::size_t rank = 0; rank < seen.size(); rank += 2) {
          const auto logits = joined(seen[rank].logits);
          EXPECT_TRUE(logits.size() == alone.size() &&
                      std::memcmp(logits.data(), alone.data(), alone.size() * sizeof(float)) == 0)
              << "rank " << rank;
        }
        expect_counted_as_predicted(seen, plan, cluster, dispatch, model.shape());
      }
    }
  }
}

TEST(AnEngine, HasTheSameBitsForEveryPlanWhereVectorsTravelAsBf16) {
  const TinyModel model({.top = 3, .seed = 9});
  Rng rng(12);
  const auto tokens = random_tokens(rng, 19, model.shape().vocab);
  const Cluster one = cluster_of("1x1");
  const auto at_home = [&](Wire wire) {
    return joined(
        run_engine(model, vanilla(model, one), one, Dispatch::kFlat, 1, {tokens}, 3, {.wire = wire})[0]
            .logits);
  };
  const auto alone = at_home(Wire::kBf16);
  EXPECT_NE(alone, at_home(Wire::kF32));
  expect_close(alone, at_home(Wire::kF32), 0.05);
  for (const char* spec : {"1x2", "2x2", "1+2", "4x2"}) {
    const Cluster cluster = cluster_of(spec);
    std::vector<std::vector<std::int32_t>> tokens_of_rank(static_cast<std::size_t>(cluster.num_devices()),
                                                          tokens);
    for (const Plan& plan : {shuffled(model, cluster, 13), doubled(model, cluster, 17)})
      for (const Dispatch dispatch : kDispatches) {
        SCOPED_TRACE(std::string(spec) + ", " + std::string(name_of(dispatch)));
        EngineOptions how = some_way(rng);
        how.wire = Wire::kBf16;
        for (const Seen& seen : run_engine(model, plan, cluster, dispatch, 1, tokens_of_rank, 3, how))
          EXPECT_EQ(joined(seen.logits), alone);
        how.combine = Combine::kReduced;
        for (const Seen& seen : run_engine(model, plan, cluster, dispatch, 1, tokens_of_rank, 3, how))
          expect_close(joined(seen.logits), alone, 0.05);
      }
  }
}

TEST(AnEngine, ChoosesHowToSendTheSameOnAllRanks) {
  const TinyModel model({.seed = 10});
  Cluster cluster = cluster_of("2x2");
  Rng rng(12);
  std::vector<std::vector<std::int32_t>> tokens;
  for (int rank = 0; rank < 4; ++rank) tokens.push_back(random_tokens(rng, 4 + 5 * rank, 61));
  const Plan plan = doubled(model, cluster, 3);
  const auto run = [&](Dispatch dispatch, int decoded, const EngineOptions& how) {
    return run_engine(model, plan, cluster, dispatch, 1, tokens, decoded, how);
  };
  const EngineOptions choose{.choose_dispatch = true, .parts = 0};
  // The slower the link between nodes, the sooner two stages pay; latency alone speaks for one.
  for (const auto& [rate, expected] :
       {std::pair(1e5, Dispatch::kTwoStage), std::pair(1e13, Dispatch::kPerDevice)}) {
    cluster.between_nodes.bytes_per_s = rate;
    cluster.between_devices.bytes_per_s = 1e12;
    const auto chosen = run(Dispatch::kFlat, 0, choose);
    const auto forced = run(expected, 0, {});
    for (std::size_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(joined(chosen[rank].logits), joined(forced[rank].logits));
      for (std::size_t layer = 0; layer < 2; ++layer)
        EXPECT_EQ(chosen[rank].counters[layer].dispatch, forced[rank].counters[layer].dispatch);
    }
  }
}

TEST(AnEngine, GoesOnTheSameWhicheverWayEachStepGoes) {
  const TinyModel model({.seed = 10});
  Rng rng(12);
  std::vector<std::vector<std::int32_t>> tokens;
  for (int rank = 0; rank < 4; ++rank) tokens.push_back(random_tokens(rng, 4 + 5 * rank, 61));
  Cluster cluster = cluster_of("2x2");
  cluster.between_nodes.bytes_per_s = 1e5;  // what a few tokens need then decides
  const Plan plan = doubled(model, cluster, 3);
  const auto forced = run_engine(model, plan, cluster, Dispatch::kFlat, 1, tokens, 3);
  const auto chosen =
      run_engine(model, plan, cluster, Dispatch::kFlat, 1, tokens, 3, {.choose_dispatch = true, .parts = 0});
  for (std::size_t rank = 0; rank < 4; ++rank)
    EXPECT_EQ(joined(chosen[rank].logits), joined(forced[rank].logits));
}

// Two steps of summing K rounded products, in any order, differ by at most 2 (K - 1) u times the sum of their
// sizes, and what a layer makes of its input grows that by no more than the test allows.
TEST(AnEngine, HasNearlyTheSameLogitsWhereResultsAreReducedOnTheWay) {
  const TinyModel model({.top = 4, .seed = 7});
  Rng rng(11);
  for (const char* spec : {"1x1", "1x3", "2x2", "1+2", "4x2"}) {
    const Cluster cluster = cluster_of(spec);
    std::vector<std::vector<std::int32_t>> tokens;
    for (int rank = 0; rank < cluster.num_devices(); ++rank)
      tokens.push_back(random_tokens(rng, 9, model.shape().vocab));
    for (const Plan& plan : {shuffled(model, cluster, 13), doubled(model, cluster, 17)}) {
      const auto exact = run_engine(model, plan, cluster, Dispatch::kPerDevice, 1, tokens, 2);
      for (const Dispatch dispatch : kDispatches) {
        SCOPED_TRACE(std::string(spec) + ", " + std::string(name_of(dispatch)));
        const auto reduced =
            run_engine(model, plan, cluster, dispatch, 1, tokens, 2, {.combine = Combine::kReduced});
        for (std::size_t rank = 0; rank < reduced.size(); ++rank) {
          expect_close(joined(reduced[rank].logits), joined(exact[rank].logits), 1e-5);
          if (cluster.num_devices() == 1) {
            EXPECT_EQ(joined(reduced[rank].logits), joined(exact[rank].logits));
          }
        }
        expect_counted_as_predicted(reduced, plan, cluster, dispatch, model.shape(), Combine::kReduced);
      }
    }
  }
}

TEST(AnEngine, RoutesByEveryPolicyWithTheSameAnswer) {
  const TinyModel model({.seed = 19});
  const Cluster cluster = cluster_of("2x2");
  Rng rng(23);
  std::vector<std::vector<std::int32_t>> tokens;
  for (int rank = 0; rank < 4; ++rank) tokens.push_back(random_tokens(rng, 9, model.shape().vocab));
  const auto expected = run_engine(model, vanilla(model, cluster), cluster, Dispatch::kFlat, 1, tokens, 1);
  for (const char* policy : {"tar", "wrr", "primary"}) {
    SCOPED_TRACE(policy);
    Plan plan = doubled(model, cluster, 29);
    plan.routing = policy;
    const auto seen = run_engine(model, plan, cluster, Dispatch::kPerDevice, 1, tokens, 1);
    for (std::size_t rank = 0; rank < 4; ++rank)
      EXPECT_EQ(joined(seen[rank].logits), joined(expected[rank].logits));
    expect_counted_as_predicted(seen, plan, cluster, Dispatch::kPerDevice, model.shape());
  }
}

TEST(AnEngine, ServesRanksThatHaveNoTokensAndARankThatHasAllExperts) {
  // With a router of zeros every token chooses experts 0 and 1; both stand on rank 3.
  const TinyModel model({.zero_router = true, .seed = 31});
  const Cluster cluster = cluster_of("1x4");
  Plan plan = vanilla(model, cluster);
  for (LayerPlan& layer : plan.layers) std::swap(layer.primaries_of_device[0], layer.primaries_of_device[3]);
  Rng rng(37);
  const int vocab = model.shape().vocab;
  const std::vector<std::vector<std::int32_t>> tokens{
      {}, random_tokens(rng, 1, vocab), random_tokens(rng, 5, vocab), random_tokens(rng, 16, vocab)};
  for (const Dispatch dispatch : kDispatches) {
    const auto seen = run_engine(model, plan, cluster, dispatch, 1, tokens, 0);
    EXPECT_THAT(joined(seen[0].logits), IsEmpty());
    EXPECT_EQ(seen[0].trace.num_tokens(), 0);
    for (std::size_t rank = 1; rank < 4; ++rank)
      expect_close(joined(seen[rank].logits), model.forward(tokens[rank]).logits, 1e-4);
    EXPECT_EQ(seen[0].counters[0].assignments, 0);
    EXPECT_EQ(seen[3].counters[0].assignments, 22 * 2);
    expect_counted_as_predicted(seen, plan, cluster, dispatch, model.shape());
  }
}

TEST(AnEngine, ServesASingleTokenThatChoosesEveryExpert) {
  const TinyModel model({.top = 8, .seed = 41});
  for (const char* spec : {"1x1", "2x2"}) {
    const Cluster cluster = cluster_of(spec);
    std::vector<std::vector<std::int32_t>> tokens(static_cast<std::size_t>(cluster.num_devices()));
    tokens.back() = {17};
    const auto seen = run_engine(model, vanilla(model, cluster), cluster, Dispatch::kPerDevice, 1, tokens, 0);
    expect_close(joined(seen.back().logits), model.forward({17}).logits, 1e-4);
  }
}

TEST(AnEngine, ForgetsEverythingOnReset) {
  const TinyModel model({.seed = 43});
  const Cluster cluster = cluster_of("1x2");
  const Plan plan = doubled(model, cluster, 1);
  const Status status = run_in_process(2, kTimeout, [&](Transport& transport) -> Status {
    ThreadPool pool(1);
    const auto engine =
        GRACE_TRY(Engine::make(model.folder(), plan, cluster, transport, pool, {.record_trace = true}));
    std::vector<float> first;
    std::vector<LayerCounters> counted;
    for (int round = 0; round < 2; ++round) {
      engine->reset(3);
      engine->clear_counters();
      std::vector<float> logits;
      const Status stepped = engine->step({{2, 0}, {5, 6, 7, 8}, {3, 1}}, false, logits);
      if (!stepped.ok()) return stepped;
      EXPECT_EQ(logits.size(), 2u * 61);
      EXPECT_EQ(engine->counters()[0].tokens, 4);
      if (round == 0) first = logits;
      EXPECT_EQ(logits, first);
      if (round == 1) {
        EXPECT_EQ(engine->counters()[1].dispatch, counted[1].dispatch);
      }
      counted.assign(engine->counters().begin(), engine->counters().end());
      const Trace trace = engine->take_trace();
      EXPECT_THAT(trace.token_ids, testing::ElementsAre(8, 5, 6, 7));  // slot 1 has none
      EXPECT_THAT(trace.sequence_offsets, testing::ElementsAre(0, 1, 4));
      EXPECT_EQ(engine->take_trace().num_tokens(), 0);
    }
    return {};
  });
  EXPECT_TRUE(status.ok()) << status.error().message;
}

// The message that every rank gets; they must agree.
std::string refusal(const std::function<std::filesystem::path(int)>& folder_of_rank, const Plan& plan,
                    const Cluster& cluster, int ranks) {
  std::vector<std::string> messages(static_cast<std::size_t>(ranks));
  const Status status = run_in_process(ranks, kTimeout, [&](Transport& transport) -> Status {
    ThreadPool pool(1);
    const auto engine = Engine::make(folder_of_rank(transport.rank()), plan, cluster, transport, pool, {});
    if (!engine.ok()) messages[static_cast<std::size_t>(transport.rank())] = engine.error().message;
    return {};
  });
  EXPECT_TRUE(status.ok());
  for (const std::string& message : messages) EXPECT_EQ(message, messages[0]);
  return messages[0];
}

TEST(AnEngine, TellsEveryRankWhyOneOfThemCannotLoad) {
  const TinyModel model({});
  const Cluster cluster = cluster_of("1x3");
  const auto folder = [&](int rank) { return rank == 1 ? model.folder() / "absent" : model.folder(); };
  EXPECT_THAT(refusal(folder, vanilla(model, cluster), cluster, 3), HasSubstr("absent"));
}

TEST(AnEngine, RefusesPlanClusterAndRanksThatDisagree) {
  const TinyModel model({});
  const auto folder = [&](int) { return model.folder(); };
  const Cluster two = cluster_of("1x2");
  EXPECT_THAT(refusal(folder, vanilla(model, two), two, 3), HasSubstr("2 devices, but 3 ranks"));
  EXPECT_FALSE(refusal(folder, vanilla(model, cluster_of("1x3")), two, 2).empty());
  EXPECT_FALSE(refusal(folder, vanilla_plan("other", 9, all_layers(2), two), two, 2).empty());
  EXPECT_FALSE(refusal(folder, vanilla_plan("other", 8, all_layers(3), two), two, 2).empty());
  Plan unknown = vanilla(model, two);
  unknown.routing = "nonsense";
  EXPECT_THAT(refusal(folder, unknown, two, 2), HasSubstr("nonsense"));
}

}  // namespace
}  // namespace grace
