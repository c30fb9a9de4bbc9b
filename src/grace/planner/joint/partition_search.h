// Inside the search of bitset_partition.h: a partition, its token sets and the increments of its value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "grace/planner/joint/bitset_partition.h"
#include "grace/planner/joint/popcount.h"

namespace grace::joint {

inline double load_value(std::span<const double> load, double mean) {
  if (mean <= 0) return 1;
  double most = 0;
  double squares = 0;
  for (const double l : load) {
    most = std::max(most, l / mean);
    squares += (l / mean - 1) * (l / mean - 1);
  }
  return most + kSpread * squares / static_cast<double>(load.size());
}

// Tokens touched by none, and by exactly one, of a set of experts.
struct Touches {
  std::vector<std::uint64_t> none;
  std::vector<std::uint64_t> one;
  std::vector<std::uint8_t> count;  // [T]
};

// A partition on its way: what a move or swap changes costs a few popcounts to know.
// Thread-compatible; the problem must outlive it.
class PartitionSearch {
 public:
  PartitionSearch(const PartitionProblem& problem, Partition start)
      : problem_(problem),
        words_((problem.num_tokens() + 63) / 64),
        groups_(problem.capacity.size()),
        partition_(std::move(start)),
        size_(groups_, 0),
        load_(problem.base_load) {
    load_.resize(groups_, 0);
    tokens_of_.resize(problem.num_experts);
    bits_.assign(problem.num_experts * words_, 0);
    for (std::size_t t = 0; t < problem.num_tokens(); ++t)
      for (std::uint32_t i = problem.begin[t]; i < problem.begin[t + 1]; ++i) {
        tokens_of_[problem.experts[i]].push_back(static_cast<std::uint32_t>(t));
        bits_[problem.experts[i] * words_ + t / 64] |= std::uint64_t{1} << (t % 64);
      }
    const std::size_t nodes = groups_ == 0 ? 0 : static_cast<std::size_t>(problem.node_of_group.back()) + 1;
    Touches untouched{std::vector<std::uint64_t>(words_, ~std::uint64_t{0}),
                      std::vector<std::uint64_t>(words_, 0),
                      std::vector<std::uint8_t>(problem.num_tokens(), 0)};
    if (problem.num_tokens() % 64 != 0)
      untouched.none.back() = (std::uint64_t{1} << (problem.num_tokens() % 64)) - 1;
    of_group_.assign(groups_, untouched);
    of_node_.assign(nodes > 1 ? nodes : 0, untouched);
    for (std::size_t e = 0; e < problem.num_experts; ++e) {
      const auto g = static_cast<std::size_t>(partition_[e]);
      add(e, g);
      load_[g] += problem.load[e];
      ++size_[g];
    }
    mean_ = std::accumulate(load_.begin(), load_.end(), 0.0) /
            static_cast<double>(std::max<std::size_t>(1, groups_));
    tokens_ = static_cast<double>(problem.num_tokens());
    value_ = value_of(problem, partition_);
  }

  double value() const { return value_; }
  const Partition& partition() const { return partition_; }
  std::size_t num_groups() const { return groups_; }
  int size_of(std::size_t g) const { return size_[g]; }

  // The change of value by moving e to another group h.
  double move_delta(std::size_t e, std::size_t h) {
    const auto g = static_cast<std::size_t>(partition_[e]);
    const std::uint64_t* b = bits(e);
    std::int64_t touches = gained(of_group_[h], b) - lost(of_group_[g], b);
    double delta = problem_.device_weight * static_cast<double>(touches);
    if (!of_node_.empty() && node(g) != node(h)) {
      touches = gained(of_node_[node(h)], b) - lost(of_node_[node(g)], b);
      delta += problem_.node_weight * static_cast<double>(touches);
    }
    return delta + load_delta(g, h, problem_.load[e]);
  }
  void move(std::size_t e, std::size_t h, double delta) {
    const auto g = static_cast<std::size_t>(partition_[e]);
    remove(e, g);
    add(e, h);
    --size_[g];
    ++size_[h];
    load_[g] -= problem_.load[e];
    load_[h] += problem_.load[e];
    partition_[e] = static_cast<int>(h);
    value_ += delta;
  }

  // The same when e and f, of different groups, change places.
  double swap_delta(std::size_t e, std::size_t f) {
    const auto g = static_cast<std::size_t>(partition_[e]);
    const auto h = static_cast<std::size_t>(partition_[f]);
    std::int64_t touches =
        exchanged(of_group_[g], bits(e), bits(f)) + exchanged(of_group_[h], bits(f), bits(e));
    double delta = problem_.device_weight * static_cast<double>(touches);
    if (!of_node_.empty() && node(g) != node(h)) {
      touches =
          exchanged(of_node_[node(g)], bits(e), bits(f)) + exchanged(of_node_[node(h)], bits(f), bits(e));
      delta += problem_.node_weight * static_cast<double>(touches);
    }
    return delta + load_delta(g, h, problem_.load[e] - problem_.load[f]);
  }
  void swap(std::size_t e, std::size_t f, double delta) {
    const auto g = static_cast<std::size_t>(partition_[e]);
    const auto h = static_cast<std::size_t>(partition_[f]);
    move(e, h, delta);
    move(f, g, 0);
  }

 private:
  const std::uint64_t* bits(std::size_t e) const { return &bits_[e * words_]; }
  std::size_t node(std::size_t g) const { return static_cast<std::size_t>(problem_.node_of_group[g]); }

  // Tokens that touch the set only when b joins; that no longer do when b leaves; the balance when `out`
  // leaves and `in` joins.
  std::int64_t gained(const Touches& set, const std::uint64_t* b) const {
    return count_and(set.none.data(), b, words_);
  }
  std::int64_t lost(const Touches& set, const std::uint64_t* b) const {
    return count_and(set.one.data(), b, words_);
  }
  std::int64_t exchanged(const Touches& set, const std::uint64_t* out, const std::uint64_t* in) const {
    return count_and(set.none.data(), in, words_) - count_and_not(set.one.data(), out, in, words_);
  }

  double load_delta(std::size_t g, std::size_t h, double load) {
    if (problem_.load_weight == 0 || g == h) return 0;
    const double before = load_value(load_, mean_);
    load_[g] -= load;
    load_[h] += load;
    const double after = load_value(load_, mean_);
    load_[g] += load;
    load_[h] -= load;
    return problem_.load_weight * tokens_ * (after - before);
  }

  void change(Touches& set, std::size_t e, int by) {
    for (const std::uint32_t t : tokens_of_[e]) {
      set.count[t] = static_cast<std::uint8_t>(set.count[t] + by);
      const std::uint64_t bit = std::uint64_t{1} << (t % 64);
      set.none[t / 64] = set.count[t] == 0 ? set.none[t / 64] | bit : set.none[t / 64] & ~bit;
      set.one[t / 64] = set.count[t] == 1 ? set.one[t / 64] | bit : set.one[t / 64] & ~bit;
    }
  }
  void add(std::size_t e, std::size_t g) {
    change(of_group_[g], e, 1);
    if (!of_node_.empty()) change(of_node_[node(g)], e, 1);
  }
  void remove(std::size_t e, std::size_t g) {
    change(of_group_[g], e, -1);
    if (!of_node_.empty()) change(of_node_[node(g)], e, -1);
  }

  const PartitionProblem& problem_;
  std::size_t words_, groups_;
  Partition partition_;
  std::vector<int> size_;                              // [G]
  std::vector<double> load_;                           // [G]
  std::vector<std::vector<std::uint32_t>> tokens_of_;  // [n]
  std::vector<std::uint64_t> bits_;                    // [n, words]
  std::vector<Touches> of_group_, of_node_;
  double mean_ = 0, tokens_ = 0, value_ = 0;
};

}  // namespace grace::joint
