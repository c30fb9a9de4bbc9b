// That what is here is worked on while the rest flies, as the timeline shows it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "grace/runtime/engine.h"
#include "grace/runtime/test_plans.h"
#include "grace/runtime/tiny_model.h"

namespace grace {
namespace {

constexpr std::chrono::milliseconds kTimeout{60000}, kLate{100};

struct Timeline {
  std::vector<Span> spans;
  std::vector<float> logits;

  // Experts' work, in the first layer, that lies within the flight of a dispatch.
  std::size_t experts_in_flight() const {
    return static_cast<std::size_t>(std::ranges::count_if(spans, [&](const Span& work) {
      return work.layer == 0 && work.activity == Activity::kExperts &&
             std::ranges::any_of(spans, [&](const Span& flight) {
               return flight.layer == 0 && flight.activity == Activity::kDispatch &&
                      work.begin_s >= flight.begin_s && work.end_s <= flight.end_s;
             });
    }));
  }
};

// Of rank 0, whose peer comes to the first layer long after it.
Timeline timeline_of(const TinyModel& model, Dispatch dispatch, Overlap overlap) {
  const Cluster cluster = cluster_of("2x1");
  const Plan plan = shuffled(model, cluster, 5);
  Timeline seen;
  std::atomic<bool> is_here = false;
  const Status status = run_in_process(2, kTimeout, [&](Transport& transport) -> Status {
    EngineOptions how;
    how.dispatch = dispatch;
    how.overlap = overlap;
    how.record_spans = true;
    const int rank = transport.rank();
    const auto count = static_cast<std::size_t>(model.shape().experts);
    how.choose = [&, rank, count](MoeOrdinal, int, int position, std::span<std::uint16_t> experts) {
      for (std::size_t k = 0; k < experts.size(); ++k)  // all experts in turn, here and there
        experts[k] =
            static_cast<std::uint16_t>((static_cast<std::size_t>(position) * experts.size() + k) % count);
      if (rank == 0) is_here = true;
    };
    ThreadPool pool(1);
    const auto engine = GRACE_TRY(Engine::make(model.folder(), plan, cluster, transport, pool, how));
    engine->reset(1);
    if (rank == 1) {
      while (!is_here) std::this_thread::yield();
      std::this_thread::sleep_for(kLate);
    }
    std::vector<float> logits;
    GRACE_TRY(engine->step({{0}, std::vector<std::int32_t>(16, 3 + rank), {16}}, true, logits));
    if (rank == 0) seen = {engine->take_spans(), std::move(logits)};
    return {};
  });
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
  return seen;
}

TEST(Overlap, ShowsExpertsAtWorkWhileVectorsFly) {
  const TinyModel model({});
  for (const Dispatch dispatch : {Dispatch::kFlat, Dispatch::kPerDevice, Dispatch::kTwoStage}) {
    const Timeline on = timeline_of(model, dispatch, Overlap::kAlways);
    const Timeline off = timeline_of(model, dispatch, Overlap::kOff);
    EXPECT_GT(on.experts_in_flight(), 0U) << name_of(dispatch);
    EXPECT_EQ(off.experts_in_flight(), 0U) << name_of(dispatch);
    EXPECT_EQ(on.logits, off.logits) << name_of(dispatch);
  }
}

}  // namespace
}  // namespace grace
