// The threads of one rank: a fixed pool that runs the parts of one loop at a time.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace grace {

// Thread-compatible: one caller at a time, who works along as thread 0. A body never starts another loop on
// the same pool.
class ThreadPool {
 public:
  // REQUIRES: num_threads >= 1, the caller included.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(item, thread) once for each item of [0, count), items handed out in ascending order; returns
  // when all are done. thread is in [0, num_threads()). What the bodies compute must not depend on which
  // thread ran them.
  void for_each(std::size_t count, const std::function<void(std::size_t item, int thread)>& body);

 private:
  void work(int thread);
  void take_items(int thread);

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable start_;
  std::condition_variable done_;
  const std::function<void(std::size_t, int)>* body_ = nullptr;
  std::size_t count_ = 0;
  std::size_t next_ = 0;
  std::size_t busy_ = 0;
  std::uint64_t round_ = 0;
  bool stop_ = false;
};

}  // namespace grace
