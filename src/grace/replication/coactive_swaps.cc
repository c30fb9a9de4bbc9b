// A gain is four look-ups: what each expert finds on each GPU is kept up to date as slots change places.
// Rejected: the joint search, which routes tokens, and needs them.
#include "grace/replication/coactive_swaps.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace grace {
namespace {

// Rounds in which something improved; a few suffice, and a bound makes the time one.
constexpr int kMaxRounds = 30;

class Swaps {
 public:
  Swaps(std::span<const double> weight, std::span<const double> coactivation,
        std::span<const std::int64_t> expert_of_slot, std::span<const std::int64_t> copies,
        const SwapShape& shape)
      : experts_(weight.size()),
        slots_(expert_of_slot.size()),
        each_(slots_ / shape.num_gpus),
        gpus_per_node_(shape.num_gpus / shape.num_nodes),
        shape_(shape),
        order_(slots_),
        pair_(experts_ * experts_, 0),
        found_on_gpu_(experts_ * shape.num_gpus, 0),
        found_in_node_(experts_ * shape.num_nodes, 0),
        count_on_gpu_(experts_ * shape.num_gpus, 0),
        load_(shape.num_gpus, 0) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    for (const std::int64_t e : expert_of_slot) expert_.push_back(static_cast<std::size_t>(e));
    for (std::size_t e = 0; e < experts_; ++e) share_.push_back(weight[e] / static_cast<double>(copies[e]));
    for (std::size_t a = 0; a < experts_; ++a)
      for (std::size_t b = 0; b < experts_; ++b)
        if (a != b)
          pair_[a * experts_ + b] = (coactivation[a * experts_ + b] + coactivation[b * experts_ + a]) / 2 /
                                    static_cast<double>(std::min(copies[a], copies[b]));
    for (std::size_t p = 0; p < slots_; ++p) put(expert_[p], gpu_of(p), 1);
    for (std::size_t g = 0; g < load_.size(); ++g) load_[g] = load_of(g);
    most_ = *std::ranges::max_element(load_);
    // Smaller gains are rounding.
    least_gain_ = 1e-9 * std::accumulate(pair_.begin(), pair_.end(), 0.0) /
                  static_cast<double>(std::max<std::size_t>(pair_.size(), 1));
  }

  std::vector<std::size_t> run() {
    bool improved = true;
    for (int round = 0; improved && round < kMaxRounds; ++round) {
      improved = false;
      for (std::size_t p = 0; p < slots_; ++p)
        for (std::size_t q = (gpu_of(p) + 1) * each_; q < slots_; ++q)
          if (may_swap(p, q) && gain(p, q) > least_gain_) {
            swap(p, q);
            improved = true;
          }
    }
    return order_;
  }

 private:
  std::size_t gpu_of(std::size_t p) const { return p / each_; }
  std::size_t node_of(std::size_t g) const { return g / gpus_per_node_; }

  // `sign` more of an expert on a GPU, as all others find it.
  void put(std::size_t e, std::size_t g, int sign) {
    count_on_gpu_[g * experts_ + e] += sign;
    double* on_gpu = found_on_gpu_.data() + g * experts_;
    double* in_node = found_in_node_.data() + node_of(g) * experts_;
    const double* pair = pair_.data() + e * experts_;
    for (std::size_t other = 0; other < experts_; ++other) {
      on_gpu[other] += sign * pair[other];
      in_node[other] += sign * pair[other];
    }
  }

  // From its slots in their order of experts, so that equal sets weigh the same to the bit.
  double load_of(std::size_t g) const {
    double load = 0;
    for (std::size_t e = 0; e < experts_; ++e) load += count_on_gpu_[g * experts_ + e] * share_[e];
    return load;
  }

  bool may_swap(std::size_t p, std::size_t q) const {
    const std::size_t e = expert_[p], f = expert_[q], a = gpu_of(p), b = gpu_of(q);
    if (e == f || (shape_.within_nodes && node_of(a) != node_of(b))) return false;
    if (count_on_gpu_[b * experts_ + e] > 0 || count_on_gpu_[a * experts_ + f] > 0) return false;
    const double more = share_[f] - share_[e];
    return load_[a] + more <= most_ && load_[b] - more <= most_;
  }

  double gain(std::size_t p, std::size_t q) const {
    const std::size_t e = expert_[p], f = expert_[q], a = gpu_of(p), b = gpu_of(q);
    const auto on = [&](std::size_t g, std::size_t x) { return found_on_gpu_[g * experts_ + x]; };
    const auto in = [&](std::size_t n, std::size_t x) { return found_in_node_[n * experts_ + x]; };
    const double both = 2 * pair_[e * experts_ + f];
    double gain = on(b, e) - on(a, e) + on(a, f) - on(b, f) - both;
    const std::size_t m = node_of(a), n = node_of(b);
    if (m != n) gain += in(n, e) - in(m, e) + in(m, f) - in(n, f) - both;
    return gain;
  }

  void swap(std::size_t p, std::size_t q) {
    const std::size_t a = gpu_of(p), b = gpu_of(q);
    put(expert_[p], a, -1);
    put(expert_[q], b, -1);
    std::swap(expert_[p], expert_[q]);
    std::swap(order_[p], order_[q]);
    put(expert_[p], a, 1);
    put(expert_[q], b, 1);
    const double load_a = load_of(a), load_b = load_of(b);
    load_[a] = load_a;
    load_[b] = load_b;
  }

  std::size_t experts_, slots_, each_, gpus_per_node_;
  SwapShape shape_;
  std::vector<std::size_t> expert_;    // [P]
  std::vector<std::size_t> order_;     // [P]
  std::vector<double> share_;          // [E]
  std::vector<double> pair_;           // [E, E]
  std::vector<double> found_on_gpu_;   // [D, E]: what an expert would find there
  std::vector<double> found_in_node_;  // [N, E]
  std::vector<int> count_on_gpu_;      // [D, E]
  std::vector<double> load_;           // [D]
  double most_ = 0, least_gain_ = 0;
};

}  // namespace

std::vector<std::size_t> coactive_order(std::span<const double> weight, std::span<const double> coactivation,
                                        std::span<const std::int64_t> expert_of_slot,
                                        std::span<const std::int64_t> copies, const SwapShape& shape) {
  return Swaps(weight, coactivation, expert_of_slot, copies, shape).run();
}

}  // namespace grace
