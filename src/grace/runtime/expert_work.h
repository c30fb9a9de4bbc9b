// Rows that chose the experts of this rank, computed a few at a time.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "grace/base/thread_pool.h"
#include "grace/kernels/kernels.h"
#include "grace/runtime/expert_exchange.h"

namespace grace {

inline constexpr int kNotHere = -1;

// The experts of a layer that a rank holds.
struct HostedExperts {
  std::vector<kernels::PackedExpert> weights;
  std::vector<int> slot_of_expert;  // [E] in weights, kNotHere where the rank has no copy
};

// Used layer after layer: set, then run_some or run_all until done. A row's output is the same bits whichever
// rows it is computed with. Thread-compatible; buffers are kept.
class ExpertWork {
 public:
  explicit ExpertWork(std::size_t hidden) : hidden_(hidden) {}

  // The rows of `first`, then those of `second`; they stay until done. REQUIRES: the rank holds their
  // experts.
  void set(std::span<const ExpertRow> first, std::span<const ExpertRow> second, const HostedExperts& experts);
  bool done() const { return next_ == items_.size(); }
  // Enough for each thread of the pool once, or a little more: the rank looks up from it.
  void run_some(const HostedExperts& experts, ThreadPool& pool);
  void run_all(const HostedExperts& experts, ThreadPool& pool);
  // [rows, H] in the rows' order. REQUIRES: done().
  std::span<float> outputs() { return {outputs_.data(), rows_.size() * hidden_}; }
  // How many experts the rows need.
  std::size_t experts() const { return num_experts_; }

 private:
  // Rows of one expert that one thread computes at a time.
  struct Item {
    std::size_t slot, first, last;  // of order_
  };
  void run(const HostedExperts& experts, ThreadPool& pool, std::size_t last);

  std::size_t hidden_;
  std::vector<ExpertRow> rows_;
  std::vector<std::size_t> begin_of_slot_;  // in order_; of the present set
  std::vector<std::size_t> order_;          // rows by slot
  std::vector<Item> items_;
  std::size_t next_ = 0, num_experts_ = 0;
  std::vector<float> outputs_;
  // Of the rows in the items' order.
  std::vector<const float*> inputs_;
  std::vector<float*> places_;
  std::vector<kernels::ExpertRows> lots_;
};

}  // namespace grace
