#include "grace/kernels/probe.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "grace/base/check.h"
#include "grace/kernels/cpu/probe_loops.h"

namespace grace::kernels {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// What each thread does in a second, summed: step(thread) is a little work and its size. All threads begin
// together, each with one item of the loop, since none is done before all have begun. Of a thread's pieces
// the median counts, so that one that was taken off its core does not.
double rate_of_all(ThreadPool& pool, double seconds, const std::function<double(int thread)>& step) {
  constexpr std::size_t kPieces = 7;
  const int threads = pool.num_threads();
  std::atomic<int> ready{0};
  std::vector<double> rates(static_cast<std::size_t>(threads));
  pool.for_each(rates.size(), [&](std::size_t, int thread) {
    ready.fetch_add(1);
    while (ready.load() < threads) std::this_thread::yield();
    std::array<double, kPieces> pieces{};
    for (double& piece : pieces) {
      const Clock::time_point begin = Clock::now();
      double done = 0, elapsed = 0;
      do {
        done += step(thread);
        elapsed = seconds_since(begin);
      } while (elapsed < seconds / kPieces);
      piece = done / elapsed;
    }
    std::ranges::nth_element(pieces, pieces.begin() + kPieces / 2);
    rates[static_cast<std::size_t>(thread)] = pieces[kPieces / 2];
  });
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

constexpr std::size_t kLargePage = std::size_t{2} << 20;
constexpr std::size_t kLine = 64, kStreams = 4;
constexpr std::size_t kPiece = std::size_t{256} << 10;  // what is read between looks at the clock
constexpr std::size_t kAhead = std::size_t{1} << 10;    // of each stream
constexpr std::size_t kPieceOfStream = kPiece / kStreams;

// A piece in kStreams streams, each a part of its own of [begin, begin + kStreams * stride).
void read_piece(const std::byte* begin, std::size_t stride) {
  for (std::size_t at = 0; at < kPieceOfStream; at += kLine) {
    for (std::size_t s = 0; s < kStreams; ++s) {
      const std::byte* line = begin + s * stride + at;
      __builtin_prefetch(line + kAhead);
      // A word of a line is the line, to the memory.
      static_cast<void>(*reinterpret_cast<const volatile std::uint64_t*>(line));
    }
  }
}

}  // namespace

Peak product_peak(const Arithmetic& arithmetic, Factors factors, ThreadPool& pool, double seconds) {
  const auto usable = usable_instructions();
  GRACE_CHECK(std::ranges::find(usable, arithmetic.instructions) != usable.end(),
              "instructions that this processor lacks");
  Peak best;
  for (const ProductLoop& loop : product_loops(arithmetic.instructions, arithmetic.numbers, factors)) {
    constexpr std::size_t kTurns = 500;
    const double rate = rate_of_all(pool, seconds, [&](int) {
      loop.run(kTurns);
      return loop.operations * static_cast<double>(kTurns);
    });
    if (rate > best.operations_per_s) best = {loop.product, rate};
  }
  return best;
}

ReadProbe::ReadProbe(ThreadPool& pool, std::size_t bytes)
    : pool_(pool), next_(static_cast<std::size_t>(pool.num_threads()), 0) {
  const std::size_t pieces = std::max<std::size_t>(1, bytes / next_.size() / kPiece);
  bytes_of_thread_ = pieces * kPiece;
  const std::size_t all = bytes_of_thread_ * next_.size();
  memory_ = Bytes(all + kLargePage);
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
  begin_ = memory_.data() + (kLargePage - address % kLargePage) % kLargePage;
#if defined(__linux__)
  // Advice: without it the rate is that of small pages, which is lower where looking them up takes long.
  static_cast<void>(::madvise(begin_, all, MADV_HUGEPAGE));
#endif
  // Pages that nobody wrote would all be the same one.
  pool_.for_each(next_.size(), [&](std::size_t part, int) {
    std::memset(begin_ + part * bytes_of_thread_, 1, bytes_of_thread_);
  });
}

double ReadProbe::bytes_per_s(double seconds) {
  const std::size_t pieces = bytes_of_thread_ / kPiece, stride = bytes_of_thread_ / kStreams;
  return rate_of_all(pool_, seconds, [&](int thread) {
    std::size_t& next = next_[static_cast<std::size_t>(thread)];
    read_piece(begin_ + static_cast<std::size_t>(thread) * bytes_of_thread_ + next * kPieceOfStream, stride);
    next = (next + 1) % pieces;
    return static_cast<double>(kPiece);
  });
}

}  // namespace grace::kernels
