// What time a rank's work takes: seconds by the clock, of its processor, and as spans.
#pragma once

#include <time.h>

#include <chrono>
#include <utility>
#include <vector>

#include "grace/runtime/engine.h"

namespace grace {

// Of the steady clock: the same for all processes of a machine.
inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Of the calling thread.
inline double cpu_s() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Adds the time it lives to a counter.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += now_s() - start_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  double start_ = now_s();
};

// The same of the calling thread's processor.
class CpuStopwatch {
 public:
  explicit CpuStopwatch(double& seconds) : seconds_(seconds) {}
  ~CpuStopwatch() { seconds_ += cpu_s() - start_; }
  CpuStopwatch(const CpuStopwatch&) = delete;
  CpuStopwatch& operator=(const CpuStopwatch&) = delete;

 private:
  double& seconds_;
  double start_ = cpu_s();
};

// Keeps the spans of an engine's layers, or nothing when it is off. Thread-compatible.
class SpanLog {
 public:
  explicit SpanLog(bool on) : on_(on) {}
  // Spans from now on are this layer's.
  void set_layer(int layer) { layer_ = layer; }
  void add(Activity activity, double begin_s, double end_s) {
    if (on_) spans_.push_back({layer_, activity, begin_s, end_s});
  }
  std::vector<Span> take() { return std::exchange(spans_, {}); }

 private:
  bool on_;
  int layer_ = 0;
  std::vector<Span> spans_;
};

}  // namespace grace
