// What the simulator predicts from a trace and a plan is what the transport counted, to the byte.
#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "grace/runtime/engine.h"
#include "grace/runtime/generate.h"
#include "grace/runtime/test_plans.h"
#include "grace/runtime/tiny_model.h"
#include "grace/sim/replay.h"

namespace grace {
namespace {

using Prompts = std::vector<std::vector<std::int32_t>>;

struct Counted {
  std::vector<LayerTraffic> layers;  // [M], summed over ranks
  std::vector<Trace> trace_of_rank;  // [D]
};

Counted generate_and_count(const TinyModel& model, const Plan& plan, const Cluster& cluster,
                           EngineOptions how, const Prompts& prompts) {
  how.record_trace = true;
  const auto ranks = static_cast<std::size_t>(cluster.num_devices());
  Counted counted;
  counted.trace_of_rank.resize(ranks);
  std::vector<std::vector<LayerCounters>> counters(ranks);
  const Status status =
      run_in_process(cluster.num_devices(), std::chrono::seconds(60), [&](Transport& transport) -> Status {
        ThreadPool pool(1);
        const auto engine = GRACE_TRY(Engine::make(model.folder(), plan, cluster, transport, pool, how));
        const auto rank = static_cast<std::size_t>(transport.rank());
        GRACE_TRY(generate(*engine, transport, prompts, {.max_new_tokens = 7, .ignore_eos = true}, {}));
        counters[rank].assign(engine->counters().begin(), engine->counters().end());
        counted.trace_of_rank[rank] = engine->take_trace();
        return {};
      });
  EXPECT_TRUE(status.ok()) << status.error().message;
  counted.layers.resize(plan.layers.size());
  for (std::size_t layer = 0; layer < plan.layers.size(); ++layer) {
    for (const auto& of_rank : counters) {
      counted.layers[layer].dispatch += of_rank[layer].dispatch;
      counted.layers[layer].combine += of_rank[layer].combine;
      counted.layers[layer].load.push_back(of_rank[layer].assignments);
    }
  }
  return counted;
}

// The sequences in the order of the prompts, which were dealt to ranks round-robin.
Trace in_prompt_order(const std::vector<Trace>& trace_of_rank, std::size_t num_prompts) {
  Trace whole = trace_of_rank[0];
  whole.phase = Phase::kMixed;
  whole.topk_ids.clear();
  whole.topk_weights.clear();
  whole.token_ids.clear();
  whole.prompt_lengths.clear();
  whole.sequence_offsets = {0};
  const std::size_t choices_per_token =
      whole.decoder_layers.size() * static_cast<std::size_t>(whole.experts_per_token);
  for (std::size_t prompt = 0; prompt < num_prompts; ++prompt) {
    const Trace& part = trace_of_rank[prompt % trace_of_rank.size()];
    const std::size_t sequence = prompt / trace_of_rank.size();
    const std::int64_t first = part.sequence_offsets[sequence];
    const std::int64_t last = part.sequence_offsets[sequence + 1];
    const auto at = [&](std::int64_t token) {
      return part.topk_ids.begin() + token * static_cast<std::int64_t>(choices_per_token);
    };
    whole.topk_ids.insert(whole.topk_ids.end(), at(first), at(last));
    whole.prompt_lengths.push_back(part.prompt_length(static_cast<int>(sequence)));
    whole.sequence_offsets.push_back(whole.sequence_offsets.back() + last - first);
  }
  return whole;
}

// The same copies, chosen among by cover and price.
Plan covered(Plan plan) {
  plan.strategy = "covered";
  plan.routing = "cover";
  for (LayerPlan& layer : plan.layers) {
    layer.cover = {16, 0.5, {}};
    for (std::size_t d = 0; d < layer.primaries_of_device.size(); ++d)
      layer.cover.price.push_back(0.5 + 0.25 * static_cast<double>(d));
  }
  return plan;
}

// The same copies under a gate held to partners: what it chose is in the trace, and stays when replayed.
Plan held(Plan plan) {
  plan.strategy = "held";
  for (LayerPlan& layer : plan.layers)
    for (int e = 0; e < plan.num_experts; ++e)
      layer.partners_of_expert.push_back(
          {ExpertId((e + 3) % plan.num_experts), ExpertId((e + 1) % plan.num_experts)});
  return plan;
}

TEST(PredictedTraffic, IsWhatTheTransportCountedForEveryPlanAndDispatch) {
  const TinyModel model({.seed = 71});
  const Prompts prompts{{1, 2, 3}, {4},          {5, 6, 7, 8, 9, 10, 11},
                        {12, 13},  {14, 15, 16}, {17, 18, 19, 20, 21}};
  ThreadPool pool(2);
  int turn = 0;
  for (const char* shape : {"1x1", "1x3", "2x2"}) {
    const Cluster cluster = cluster_of(shape);
    std::vector<Plan> plans{vanilla(model, cluster), shuffled(model, cluster, 5)};
    if (cluster.num_devices() > 1) {
      plans.push_back(doubled(model, cluster, 6));
      plans.push_back(covered(plans.back()));
      plans.push_back(held(plans.front()));
    }
    for (const Plan& plan : plans) {
      for (const Dispatch dispatch : {Dispatch::kFlat, Dispatch::kPerDevice, Dispatch::kTwoStage,
                                      Dispatch::kPadded, Dispatch::kAllGather}) {
        // Both ways home, both ways to travel and every way to overlap, in turn.
        const EngineOptions how{.dispatch = dispatch,
                                .combine = turn % 2 == 0 ? Combine::kExact : Combine::kReduced,
                                .wire = turn % 3 == 0 ? Wire::kBf16 : Wire::kF32,
                                .overlap = turn % 4 < 2 ? Overlap::kAlways : Overlap::kOff,
                                .parts = 1 + turn % 3};
        ++turn;
        SCOPED_TRACE(std::string(shape) + " " + plan.strategy + " " + std::string(name_of(dispatch)) + " " +
                     std::string(name_of(how.combine)) + " " + std::string(name_of(how.wire)));
        const Counted counted = generate_and_count(model, plan, cluster, how, prompts);
        const Trace trace = in_prompt_order(counted.trace_of_rank, prompts.size());
        ASSERT_TRUE(violations(trace).empty()) << violations(trace).front();
        const Replay predicted =
            replay(trace, plan, cluster,
                   {.dispatch = dispatch,
                    .combine = how.combine,
                    .bytes_per_vector = bytes_per_value(how.wire) * model.shape().hidden},
                   pool)
                .value();
        ASSERT_EQ(predicted.layers.size(), counted.layers.size());
        for (std::size_t layer = 0; layer < counted.layers.size(); ++layer) {
          EXPECT_EQ(predicted.layers[layer].traffic.dispatch, counted.layers[layer].dispatch);
          EXPECT_EQ(predicted.layers[layer].traffic.combine, counted.layers[layer].combine);
          EXPECT_EQ(predicted.layers[layer].traffic.load, counted.layers[layer].load);
        }
      }
    }
  }
}

}  // namespace
}  // namespace grace
