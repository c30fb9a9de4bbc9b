#include "grace/kernels/probe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "grace/kernels/cpu/probe_loops.h"

namespace grace::kernels {
namespace {

constexpr double kShort = 1e-4;

TEST(AProbe, MeasuresEveryProductThatThisProcessorHas) {
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    for (const Instructions instructions : usable_instructions()) {
      for (const Numbers numbers : {Numbers::kF32, Numbers::kBf16, Numbers::kInt8}) {
        for (const Factors factors : {Factors::kInRegisters, Factors::kLoaded}) {
          SCOPED_TRACE(std::string(name_of(instructions)) + " " + std::string(name_of(numbers)));
          const Peak peak = product_peak({instructions, numbers}, factors, pool, kShort);
          EXPECT_FALSE(peak.product.empty());
          EXPECT_TRUE(std::isfinite(peak.operations_per_s));
          EXPECT_GT(peak.operations_per_s, 0);
        }
      }
    }
  }
}

TEST(AProbe, KnowsAProductForInstructionsThatAreNotHere) {
  for (const Instructions instructions :
       {Instructions::kAmx, Instructions::kAvx512Bf16, Instructions::kAvx512, Instructions::kAvx2,
        Instructions::kPortable}) {
    for (const Numbers numbers : {Numbers::kF32, Numbers::kBf16, Numbers::kInt8}) {
      for (const ProductLoop& loop : product_loops(instructions, numbers, Factors::kLoaded)) {
        EXPECT_FALSE(loop.product.empty());
        EXPECT_GT(loop.operations, 0);
        EXPECT_NE(loop.run, nullptr);
      }
    }
  }
}

TEST(AProbe, OfAmxNamesItsLoads) {
  const auto loaded = product_loops(Instructions::kAmx, Numbers::kBf16, Factors::kLoaded);
  const auto bare = product_loops(Instructions::kAmx, Numbers::kBf16, Factors::kInRegisters);
#if defined(__x86_64__)
  EXPECT_NE(loaded.front().product, bare.front().product);
#endif
  EXPECT_EQ(loaded.front().operations, bare.front().operations);
}

TEST(AReadProbe, ReadsOnFromWhereItStopped) {
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    ReadProbe probe(pool, std::size_t{8} << 20);
    for (int call = 0; call < 3; ++call) {
      const double rate = probe.bytes_per_s(kShort);
      EXPECT_TRUE(std::isfinite(rate));
      EXPECT_GT(rate, 0);
    }
  }
}

TEST(AReadProbe, TakesAMinuteAmountOfMemory) {
  ThreadPool pool(2);
  ReadProbe probe(pool, 1);
  EXPECT_GT(probe.bytes_per_s(kShort), 0);
}

}  // namespace
}  // namespace grace::kernels
