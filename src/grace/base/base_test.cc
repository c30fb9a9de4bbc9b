#include <gmock/gmock.h>

#include <atomic>
#include <numeric>
#include <vector>

#include "grace/base/ids.h"
#include "grace/base/result.h"
#include "grace/base/rng.h"
#include "grace/base/thread_pool.h"

namespace grace {
namespace {

Result<int> half(int x) {
  if (x % 2 != 0) return invalid_input("odd");
  return x / 2;
}
Result<int> quarter(int x) {
  const int once = GRACE_TRY(half(x));
  return GRACE_TRY(half(once));
}

TEST(AResult, CarriesAValueOrTheFirstError) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_EQ(quarter(6).error().message, "odd");
  EXPECT_EQ(quarter(6).error().kind, ErrorKind::kInvalidInput);
}

TEST(AnRng, RepeatsItselfFromTheSameSeed) {
  Rng a(7);
  Rng b(7);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(a.next(), b.next());
  EXPECT_EQ(a.fork(3).next(), Rng(7).fork(3).next());
  EXPECT_NE(a.fork(3).next(), a.fork(4).next());
}

TEST(AnRng, StaysBelowItsBoundAndReachesEveryValue) {
  Rng rng(1);
  std::vector<int> seen(7, 0);
  for (int i = 0; i < 7000; ++i) ++seen.at(rng.below(7));
  for (int count : seen) EXPECT_NEAR(count, 1000, 200);
}

TEST(AThreadPool, RunsManyShortRoundsOneBehindTheOther) {
  for (const int threads : {1, 2, 3, 9}) {
    ThreadPool pool(threads);
    std::vector<int> counts(5, 0);
    for (int round = 0; round < 2000; ++round) {
      pool.for_each(counts.size(), [&](std::size_t item, int) { ++counts[item]; });
      if (round % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // until they sleep
    }
    for (const int count : counts) EXPECT_EQ(count, 2000);
  }
}

TEST(AThreadPool, HoldsItsThreadsToProcessorsOfTheirOwnAndLetsGo) {
  const int processors = num_processors();
  {
    ThreadPool pool(processors);
    ASSERT_TRUE(pool.pin(0));
    std::vector<int> may_use(static_cast<std::size_t>(processors), 0);
    for (int round = 0; round < 100; ++round)
      pool.for_each(may_use.size(), [&](std::size_t, int thread) {
        may_use[static_cast<std::size_t>(thread)] = num_processors();
      });
    EXPECT_EQ(may_use.front(), 1);
    for (const int count : may_use) EXPECT_LE(count, 1);
  }
  EXPECT_EQ(num_processors(), processors);
  ThreadPool pool(2);
  EXPECT_FALSE(pool.pin(processors - 1));
  EXPECT_EQ(num_processors(), processors);
}

TEST(AThreadPool, RunsEachItemOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (std::size_t count : {0, 1, 2, 1000}) {
      std::vector<std::atomic<int>> runs(count);
      pool.for_each(count, [&](std::size_t item, int) { ++runs[item]; });
      for (const auto& run : runs) ASSERT_EQ(run, 1);
    }
  }
}

}  // namespace
}  // namespace grace
