#include "grace/base/thread_pool.h"

#include "grace/base/check.h"

namespace grace {

ThreadPool::ThreadPool(int num_threads) {
  GRACE_CHECK(num_threads >= 1, "a pool has at least its caller");
  for (int thread = 1; thread < num_threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::for_each(std::size_t count, const std::function<void(std::size_t, int)>& body) {
  if (workers_.empty() || count < 2) {
    for (std::size_t item = 0; item < count; ++item) body(item, 0);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    body_ = &body;
    count_ = count;
    next_ = 0;
    busy_ = workers_.size();
    ++round_;
  }
  start_.notify_all();
  take_items(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return busy_ == 0; });
  body_ = nullptr;
}

void ThreadPool::work(int thread) {
  std::uint64_t seen = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return stop_ || round_ != seen; });
      if (stop_) return;
      seen = round_;
    }
    take_items(thread);
    const std::lock_guard lock(mutex_);
    if (--busy_ == 0) done_.notify_one();
  }
}

void ThreadPool::take_items(int thread) {
  for (;;) {
    std::size_t item = 0;
    const std::function<void(std::size_t, int)>* body = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (next_ >= count_) return;
      item = next_++;
      body = body_;
    }
    (*body)(item, thread);
  }
}

}  // namespace grace
