#include "grace/base/thread_pool.h"

#include <fmt/format.h>

#include <algorithm>

#include "grace/base/check.h"

#if defined(__linux__)
#include <sched.h>
#endif

namespace grace {
namespace {

// A layer's loops follow one another within microseconds, and waking a sleeping thread takes tens of them.
constexpr int kSpins = 2000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Processors this process may run on.
int processors() {
#if defined(__linux__)
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0) return CPU_COUNT(&allowed);
#endif
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

}  // namespace

Result<int> threads_for(int asked) {
  constexpr int kMost = 1024;
  if (asked < 0 || asked > kMost)
    return invalid_input(fmt::format("threads: {} is outside [1, {}]", asked, kMost));
  return asked > 0 ? asked : processors();
}

ThreadPool::ThreadPool(int num_threads) : spins_(num_threads <= processors() ? kSpins : 0) {
  GRACE_CHECK(num_threads >= 1, "a pool has at least its caller");
  for (int thread = 1; thread < num_threads; ++thread)
    workers_.emplace_back([this, thread] { work(thread); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_.store(true);
    round_.fetch_add(1);
  }
  start_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(AnyBody body, std::size_t count) {
  if (workers_.empty() || count < 2) {
    for (std::size_t item = 0; item < count; ++item) body.call(body.body, item, 0);
    return;
  }
  body_ = body;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    round_.fetch_add(1, std::memory_order_release);
  }
  if (sleepers_.load() > 0) start_.notify_all();
  take_items(0);
  for (int spin = 0; spin < spins_ && busy_.load(std::memory_order_acquire) > 0; ++spin) relax();
  if (busy_.load(std::memory_order_acquire) > 0) {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_.load(std::memory_order_acquire) == 0; });
  }
  body_ = {};
}

void ThreadPool::work(int thread) {
  std::uint64_t seen = 0;
  for (;;) {
    await_round(seen);
    seen = round_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    take_items(thread);
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) > 1) continue;
    const std::lock_guard lock(mutex_);  // whoever waits has looked, or will find it done
    done_.notify_one();
  }
}

// Spins a while, then sleeps, until a round other than `seen` has begun.
void ThreadPool::await_round(std::uint64_t seen) {
  for (int spin = 0; spin < spins_; ++spin) {
    if (round_.load(std::memory_order_acquire) != seen) return;
    relax();
  }
  std::unique_lock lock(mutex_);
  sleepers_.fetch_add(1);
  start_.wait(lock, [&] { return round_.load(std::memory_order_acquire) != seen; });
  sleepers_.fetch_sub(1);
}

void ThreadPool::take_items(int thread) {
  for (;;) {
    const std::size_t item = next_.fetch_add(1, std::memory_order_relaxed);
    if (item >= count_) return;
    body_.call(body_.body, item, thread);
  }
}

}  // namespace grace
