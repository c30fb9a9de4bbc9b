#include "grace/runtime/replay_engine.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "grace/base/rng.h"
#include "grace/runtime/test_plans.h"

namespace grace {
namespace {

constexpr std::chrono::milliseconds kTimeout{60000};
constexpr Dispatch kDispatches[] = {Dispatch::kFlat, Dispatch::kPerDevice, Dispatch::kTwoStage,
                                    Dispatch::kPadded, Dispatch::kAllGather};

struct Seen {
  std::vector<std::vector<float>> logits;  // [steps], of each sequence's last token
  std::vector<LayerCounters> counters;
};

// What each rank saw.
std::vector<Seen> run_replay(const ReplaySource& source, const Plan& plan, const Cluster& cluster,
                             const EngineOptions& options) {
  std::vector<Seen> seen(static_cast<std::size_t>(cluster.num_devices()));
  const Status status = run_in_process(cluster.num_devices(), kTimeout, [&](Transport& transport) -> Status {
    ThreadPool pool(1);
    const auto engine = GRACE_TRY(make_replay_engine(source, plan, cluster, transport, pool, options));
    // Twelve prompts of five tokens and one more each, dealt to the ranks.
    StepInput input;
    const int own = 12 / transport.size();
    engine->reset(own);
    for (int s = 0; s < own; ++s) input.sequences.push_back(s);
    Seen& mine = seen[static_cast<std::size_t>(transport.rank())];
    for (const int tokens : {5, 1}) {
      input.num_new.assign(static_cast<std::size_t>(own), tokens);
      input.token_ids.assign(static_cast<std::size_t>(own * tokens), 0);
      GRACE_TRY(engine->step(input, false, mine.logits.emplace_back()));
    }
    mine.counters.assign(engine->counters().begin(), engine->counters().end());
    return {};
  });
  EXPECT_TRUE(status.ok()) << status.error().message;
  return seen;
}

TEST(AReplay, ServesTheTracesChoicesWithTheSameBitsWhateverThePlan) {
  Rng rng(3);
  ReplaySource source{.trace = {}, .hidden = 16, .expert_ffn = 12, .seed = 5};
  source.trace.model = "tiny";
  source.trace.num_experts = 8;
  source.trace.experts_per_token = 2;
  source.trace.decoder_layers = {1, 2};
  source.trace.sequence_offsets = {0, 3, 7, 20};
  for (int i = 0; i < 20 * 2; ++i) {
    const auto first = static_cast<std::uint16_t>(rng.below(8));
    source.trace.topk_ids.insert(source.trace.topk_ids.end(),
                                 {first, static_cast<std::uint16_t>((first + 1 + rng.below(7)) % 8)});
  }
  const auto plan_on = [](const Cluster& cluster) { return vanilla_plan("tiny", 8, {1, 2}, cluster); };
  const Cluster one = cluster_of("1x1");
  const auto alone = run_replay(source, plan_on(one), one, {});
  for (const char* spec : {"1x2", "2x2", "1+2"}) {
    const Cluster cluster = cluster_of(spec);
    const auto ranks = static_cast<std::size_t>(cluster.num_devices());
    for (const Dispatch dispatch : kDispatches) {
      SCOPED_TRACE(std::string(spec) + ", " + std::string(name_of(dispatch)));
      const auto seen = run_replay(source, plan_on(cluster), cluster, {.dispatch = dispatch});
      std::int64_t assignments = 0;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        for (const LayerCounters& layer : seen[rank].counters) assignments += layer.assignments;
        for (std::size_t step = 0; step < 2; ++step)
          for (std::size_t slot = 0; slot < 12 / ranks; ++slot) {
            const std::size_t prompt = slot * ranks + rank;
            EXPECT_EQ(std::memcmp(&seen[rank].logits[step][slot * 256], &alone[0].logits[step][prompt * 256],
                                  256 * sizeof(float)),
                      0);
          }
      }
      EXPECT_EQ(assignments, 12 * 6 * 2 * 2);
    }
  }
}

}  // namespace
}  // namespace grace
