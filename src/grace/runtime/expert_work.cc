#include "grace/runtime/expert_work.h"

#include <algorithm>

#include "grace/base/check.h"

namespace grace {
namespace {

// Enough to use a weight often once it is in the cache, few enough to share out and to look up in between.
constexpr std::size_t kMostRowsOfItem = 96;

}  // namespace

void ExpertWork::set(std::span<const ExpertRow> first, std::span<const ExpertRow> second,
                     const HostedExperts& experts) {
  rows_.assign(first.begin(), first.end());
  rows_.insert(rows_.end(), second.begin(), second.end());
  // Outputs only grow: what is not computed is never read.
  if (outputs_.size() < rows_.size() * hidden_) outputs_.resize(rows_.size() * hidden_);
  const auto slot_of = [&](const ExpertRow& row) { return experts.slot_of_expert[row.expert.idx()]; };
  std::vector<std::size_t>& begin = begin_of_slot_;
  begin.assign(experts.weights.size() + 1, 0);
  for (const ExpertRow& row : rows_) {
    GRACE_CHECK(slot_of(row) != kNotHere, "a row for an expert that is not here");
    ++begin[static_cast<std::size_t>(slot_of(row)) + 1];
  }
  items_.clear();
  next_ = num_experts_ = 0;
  for (std::size_t slot = 0; slot + 1 < begin.size(); ++slot) {
    num_experts_ += begin[slot + 1] > 0 ? 1 : 0;
    begin[slot + 1] += begin[slot];
    // All of nearly one size: a small rest would read the weights for few rows.
    const std::size_t rows = begin[slot + 1] - begin[slot];
    const std::size_t parts = (rows + kMostRowsOfItem - 1) / kMostRowsOfItem;
    for (std::size_t p = 0; p < parts; ++p)
      items_.push_back({slot, begin[slot] + rows * p / parts, begin[slot] + rows * (p + 1) / parts});
  }
  order_.resize(rows_.size());
  for (std::size_t row = 0; row < rows_.size(); ++row)
    order_[begin[static_cast<std::size_t>(slot_of(rows_[row]))]++] = row;
  inputs_.clear();
  places_.clear();
  for (const std::size_t row : order_) {
    inputs_.push_back(rows_[row].x);
    places_.push_back(outputs_.data() + row * hidden_);
  }
}

void ExpertWork::run_some(const HostedExperts& experts, ThreadPool& pool) {
  run(experts, pool, std::min(items_.size(), next_ + static_cast<std::size_t>(pool.num_threads())));
}

void ExpertWork::run_all(const HostedExperts& experts, ThreadPool& pool) {
  run(experts, pool, items_.size());
}

void ExpertWork::run(const HostedExperts& experts, ThreadPool& pool, std::size_t last) {
  lots_.clear();
  for (; next_ < last; ++next_) {
    const Item& item = items_[next_];
    const std::size_t rows = item.last - item.first;
    lots_.push_back({&experts.weights[item.slot], std::span(inputs_).subspan(item.first, rows),
                     std::span(places_).subspan(item.first, rows)});
  }
  kernels::expert_ffns(lots_, pool);
}

}  // namespace grace
