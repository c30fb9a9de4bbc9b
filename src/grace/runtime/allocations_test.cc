// What a step takes from the system's memory once the steps before it have made room: nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "grace/runtime/engine.h"
#include "grace/runtime/test_plans.h"
#include "grace/runtime/tiny_model.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCounts = false;  // a sanitizer's own allocator stays in place
#else
constexpr bool kCounts = true;
#endif

namespace {

std::atomic<bool> counting = false;
std::atomic<int> allocations = 0;

}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace {

void* taken(std::size_t size, std::size_t alignment) {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
  const std::size_t whole = (std::max<std::size_t>(size, 1) + alignment - 1) / alignment * alignment;
  if (void* memory = std::aligned_alloc(alignment, whole)) return memory;
  std::abort();
}

// Not seen through by the compiler, which takes `free` after `new` for a mistake.
[[gnu::noinline]] void give_back(void* memory) { std::free(memory); }

}  // namespace

void* operator new(std::size_t size) { return taken(size, alignof(std::max_align_t)); }
void* operator new[](std::size_t size) { return taken(size, alignof(std::max_align_t)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return taken(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return taken(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { give_back(memory); }
void operator delete[](void* memory) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { give_back(memory); }
#endif

namespace grace {
namespace {

constexpr std::chrono::milliseconds kTimeout{60000};
constexpr int kSequences = 3, kPrompt = 5, kWarm = 16, kCounted = 4, kWindows = 20;

// Of all ranks, in kCounted steps of one token for each sequence: the fewest of kWindows such, since the KV
// cache takes a block now and then, and a thread its working memory when it first gets a piece of a kind.
int allocations_of(const std::string& shape, int threads, EngineOptions how) {
  // One choice for all tokens, so that no message is longer than those before it.
  const TinyModel model({.max_positions = 128, .zero_router = true});
  const Cluster cluster = cluster_of(shape);
  const Plan plan = doubled(model, cluster, 3);
  int fewest = std::numeric_limits<int>::max();
  const Status status = run_in_process(cluster.num_devices(), kTimeout, [&](Transport& transport) -> Status {
    ThreadPool pool(threads);
    const auto engine = GRACE_TRY(Engine::make(model.folder(), plan, cluster, transport, pool, how));
    engine->reset(kSequences);
    std::vector<float> logits;
    StepInput input{
        {0, 1, 2}, std::vector<std::int32_t>(kSequences * kPrompt, 7), std::vector<int>(kSequences, kPrompt)};
    GRACE_TRY(engine->step(input, false, logits));
    input.num_new.assign(kSequences, 1);
    input.token_ids.resize(kSequences);
    const auto run = [&](int steps) -> Status {
      for (int step = 0; step < steps; ++step) {
        for (std::int32_t& id : input.token_ids)
          id = (id * 5 + step + transport.rank()) % model.shape().vocab;
        GRACE_TRY(engine->step(input, false, logits));
      }
      return transport.barrier();
    };
    GRACE_TRY(run(kWarm));
    for (int window = 0; window < kWindows; ++window) {
      if (transport.rank() == 0) {
        allocations = 0;
        counting = true;
      }
      GRACE_TRY(transport.barrier());
      GRACE_TRY(run(kCounted));
      if (transport.rank() != 0) continue;
      counting = false;
      fewest = std::min(fewest, allocations.load());
    }
    return {};
  });
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
  return fewest;
}

TEST(ASteadyStep, TakesNoMemory) {
  if (!kCounts) GTEST_SKIP() << "a sanitizer allocates";
  EngineOptions plain, bf16, reduced;
  bf16.arithmetic.numbers = kernels::Numbers::kBf16;
  reduced.combine = Combine::kReduced;
  reduced.wire = Wire::kBf16;
  for (EngineOptions how : {plain, bf16, reduced}) {
    how.overlap = how.combine == Combine::kReduced ? Overlap::kAlways : Overlap::kOff;  // not by the clock
    for (const int threads : {1, 2}) EXPECT_EQ(allocations_of("1x1", threads, how), 0) << threads;
    EngineOptions two_stage = how;
    two_stage.dispatch = Dispatch::kTwoStage;
    EXPECT_EQ(allocations_of("1x2", 1, how), 0);
    EXPECT_EQ(allocations_of("2x2", 1, two_stage), 0);
  }
}

}  // namespace
}  // namespace grace
