// The experts of a MoE layer that every token has: each rank computes them for its own tokens.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "grace/base/thread_pool.h"
#include "grace/kernels/kernels.h"
#include "grace/model/model.h"
#include "grace/runtime/context.h"

namespace grace {

// One layer's, side by side in one. Owner.
struct SharedExperts {
  kernels::PackedExpert ffn;
  std::vector<float> gate;  // [H] what they say is weighed by the sigmoid of gate * x; empty: by 1
};
SharedExperts load_shared(const RankContext& context, const Checkpoint& checkpoint,
                          const LayerWeights& weights);

// Used layer after layer: set, then run_some or run_all until done, then add. It needs no messages, so it
// fills the wait for them. Thread-compatible; buffers are kept.
class SharedWork {
 public:
  explicit SharedWork(std::size_t hidden) : hidden_(hidden) {}

  // x: [T, H], which stays until done. experts: or none, and there is nothing to do.
  void set(const SharedExperts* experts, std::span<const float> x);
  bool done() const { return next_ == tokens_; }
  // A lot of tokens that is small enough to look up from.
  void run_some(ThreadPool& pool);
  void run_all(ThreadPool& pool);
  // h: [T, H] += what they say. REQUIRES: done().
  void add(std::span<float> h) const;

 private:
  std::size_t hidden_;
  const SharedExperts* experts_ = nullptr;
  std::span<const float> x_;
  std::size_t next_ = 0, tokens_ = 0;
  std::vector<float> outputs_;
};

}  // namespace grace
