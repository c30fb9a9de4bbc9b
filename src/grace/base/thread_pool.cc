#include "grace/base/thread_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "grace/base/check.h"

#if defined(__linux__)
#include <pthread.h>
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

// Those that the calling thread may run on, ascending; none where the system does not tell.
std::vector<int> own_processors() {
  std::vector<int> own;
#if defined(__linux__)
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return own;
  for (int p = 0; p < CPU_SETSIZE; ++p)
    if (CPU_ISSET(p, &allowed)) own.push_back(p);
#endif
  return own;
}

bool hold_to([[maybe_unused]] std::thread::native_handle_type thread,
             [[maybe_unused]] std::span<const int> processors) {
#if defined(__linux__)
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  for (const int p : processors) CPU_SET(p, &allowed);
  return ::pthread_setaffinity_np(thread, sizeof allowed, &allowed) == 0;
#else
  return false;
#endif
}

}  // namespace

int num_processors() {
  const std::vector<int> own = own_processors();
  return own.empty() ? static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))
                     : static_cast<int>(own.size());
}

Result<int> threads_for(int asked) {
  constexpr int kMost = 1024;
  if (asked < 0 || asked > kMost)
    return invalid_input(fmt::format("threads: {} is outside [1, {}]", asked, kMost));
  return asked > 0 ? asked : num_processors();
}

ThreadPool::ThreadPool(int num_threads) : spins_(num_threads <= num_processors() ? kSpins : 0) {
  GRACE_CHECK(num_threads >= 1, "a pool has at least its caller");
  for (int thread = 1; thread < num_threads; ++thread)
    workers_.emplace_back([this, thread] { work(thread); });
}

ThreadPool::~ThreadPool() {
  unpin();
  {
    const std::lock_guard lock(mutex_);
    stop_.store(true);
    round_.fetch_add(1);
  }
  start_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

bool ThreadPool::pin(int first) {
  GRACE_CHECK(first >= 0 && callers_processors_.empty(), "pinned twice, or to a processor below 0");
  std::vector<int> processors = own_processors();
  if (first + num_threads() > static_cast<int>(processors.size())) return false;
  callers_processors_ = processors;
  const auto own = std::span(processors).subspan(static_cast<std::size_t>(first));
  bool all = hold_to(pthread_self(), own.first(1));
  for (std::size_t w = 0; w < workers_.size(); ++w)
    all = hold_to(workers_[w].native_handle(), own.subspan(w + 1, 1)) && all;
  if (!all) unpin();
  return all;
}

void ThreadPool::unpin() {
  if (callers_processors_.empty()) return;
  hold_to(pthread_self(), callers_processors_);
  for (std::thread& worker : workers_) hold_to(worker.native_handle(), callers_processors_);
  callers_processors_.clear();
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
