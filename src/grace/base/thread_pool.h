// The threads of one rank: a fixed pool that runs the parts of one loop at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "grace/base/result.h"

namespace grace {

// As many threads as are asked for; for 0 as many as there are processors that this process may run on.
// Errors: invalid_input outside [0, 1,024].
Result<int> threads_for(int asked);
// Processors that this process may run on.
int num_processors();

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

  // Holds each thread, the calling one first, to one processor of those that it may run on: the `first`-th
  // and those behind it. Whether it did: not where there are too few, nor where the system cannot. Until the
  // pool ends, which must be on the same thread. REQUIRES: first >= 0; not pinned before.
  bool pin(int first);

  // Calls body(item, thread) once for each item of [0, count), items handed out in ascending order; returns
  // when all are done. thread is in [0, num_threads()). What the bodies compute must not depend on which
  // thread ran them. Takes no memory.
  template <typename Body>
  void for_each(std::size_t count, const Body& body) {
    run({&body,
         [](const void* it, std::size_t item, int thread) { (*static_cast<const Body*>(it))(item, thread); }},
        count);
  }

 private:
  // A body that lives as long as the loop does.
  struct AnyBody {
    const void* body = nullptr;
    void (*call)(const void* body, std::size_t item, int thread) = nullptr;
  };
  void run(AnyBody body, std::size_t count);
  void unpin();
  void work(int thread);
  void await_round(std::uint64_t seen);
  void take_items(int thread);

  // Rounds with work: a round's body, count and items stay until no worker is busy with it.
  AnyBody body_;
  std::size_t count_ = 0;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<int> busy_ = 0;
  std::atomic<std::uint64_t> round_ = 0;
  std::atomic<bool> stop_ = false;

  int spins_;  // before a thread sleeps; none where there are fewer processors than threads
  std::atomic<int> sleepers_ = 0;
  std::mutex mutex_;
  std::condition_variable start_, done_;
  std::vector<std::thread> workers_;
  std::vector<int> callers_processors_;  // before pin()
};

}  // namespace grace
