#include "grace/planner/joint/search_tokens.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "grace/base/check.h"

namespace grace::joint {
namespace {

// E[max(floor * [N > 0], N)] for N ~ Poisson(mean): what a copy costs a batch in which it expects `mean`
// assignments and cannot cost less than `floor` once it is touched.
double expected_work(double mean, double floor) {
  if (mean <= 0) return 0;
  const double spread = 8 * std::sqrt(mean) + 8;
  if (mean - spread > floor) return mean;
  // max(f, N) [N > 0] = N + (f - N) [0 < N < f].
  double sum = mean;
  double log_p = -mean;  // of N = 0
  for (double n = 1; n < floor; ++n) {
    log_p += std::log(mean / n);
    sum += (floor - n) * std::exp(log_p);
    if (n > mean + spread) break;
  }
  return sum;
}

// [S] the random halves of each sequence: in each pair of complements, sequences in random order until half
// of the tokens are taken.
std::vector<std::uint8_t> deal_halves(const Trace& trace, Rng& rng) {
  std::vector<std::uint8_t> halves(static_cast<std::size_t>(trace.num_sequences()), 0);
  std::vector<std::size_t> order(halves.size());
  for (std::size_t r = 0; r < kHalves / 2; ++r) {
    std::iota(order.begin(), order.end(), std::size_t{0});
    rng.shuffle(std::span(order));
    std::int64_t taken = 0;
    for (const std::size_t s : order) {
      const bool first = 2 * taken < trace.num_tokens();
      taken += trace.sequence_offsets[s + 1] - trace.sequence_offsets[s];
      halves[s] = static_cast<std::uint8_t>(halves[s] | 1U << (first ? r : r + kHalves / 2));
    }
  }
  return halves;
}

}  // namespace

SearchTokens sample_tokens(const Trace& trace, MoeOrdinal layer, int num_devices, std::size_t max_tokens,
                           Rng rng) {
  std::vector<std::int64_t> rows;
  const auto all = static_cast<std::size_t>(trace.num_tokens());
  const std::size_t wanted = std::min(all, max_tokens);
  // Every all/wanted-th token, from a random one of the first.
  const std::size_t stride = wanted == 0 ? 1 : all / wanted;
  const std::size_t shift = stride > 1 ? rng.below(stride) : 0;
  for (std::size_t i = 0; i < wanted; ++i)
    rows.push_back(static_cast<std::int64_t>(std::min(all - 1, i * all / wanted + shift)));
  rng.shuffle(std::span(rows));
  const std::vector<std::uint8_t> halves_of_sequence = deal_halves(trace, rng);
  SearchTokens tokens;
  tokens.num_experts = trace.num_experts;
  tokens.load.assign(static_cast<std::size_t>(trace.num_experts), 0);
  for (const std::int64_t row : rows) {
    for (const std::uint16_t expert : trace.choices(row, layer)) {
      if (expert == kNotRouted) continue;
      tokens.experts.push_back(expert);
      ++tokens.load[expert];
      ++tokens.assignments;
    }
    if (tokens.experts.size() == tokens.begin.back()) continue;
    tokens.begin.push_back(static_cast<std::uint32_t>(tokens.experts.size()));
    const auto next = std::ranges::upper_bound(trace.sequence_offsets, row);
    tokens.halves.push_back(
        halves_of_sequence[static_cast<std::size_t>(next - trace.sequence_offsets.begin()) - 1]);
    tokens.source.push_back(
        static_cast<std::uint16_t>(tokens.source.size() % static_cast<std::size_t>(num_devices)));
  }
  return tokens;
}

Weights weights_of(const Objective& objective, const Cluster& cluster, const SearchTokens& tokens) {
  Weights weights;
  const auto devices = static_cast<std::size_t>(cluster.num_devices());
  weights.speed.assign(devices, 1);
  weights.work.resize(tokens.size() + 1);
  std::iota(weights.work.begin(), weights.work.end(), 0.0);
  if (objective.aim != Aim::kLayerTime) {
    const Yardstick& yardstick = objective.aim == Aim::kJudgeSlow ? kSlowYardstick : kFastYardstick;
    weights.node = yardstick.node;
    weights.device = yardstick.device;
    weights.load = yardstick.load;
    return weights;
  }
  const LayerSizes& sizes = objective.sizes;
  GRACE_CHECK(sizes.known(), "layer time needs the layer's sizes");
  for (std::size_t d = 0; d < devices; ++d)
    weights.speed[d] = cluster.device(DeviceId(static_cast<std::int32_t>(d))).speed;
  // Vectors are spread over the nodes and devices; the largest is what counts, and the balance of loads
  // stands for it.
  const double node_s = 2 * sizes.vector_bytes() / cluster.between_nodes.bytes_per_s / cluster.num_nodes();
  const double device_s =
      2 * sizes.vector_bytes() / cluster.between_devices.bytes_per_s / static_cast<double>(devices);
  const double assignment_s = sizes.flops_per_assignment() / cluster.flops_per_s;
  const double per_token =
      tokens.size() == 0 ? 1 : static_cast<double>(tokens.assignments) / static_cast<double>(tokens.size());
  const double share_s =
      assignment_s * per_token / static_cast<double>(devices);  // a token's mean compute share
  weights.node = node_s / share_s;
  weights.device = device_s / share_s;
  weights.load = 1;
  const double floor = sizes.expert_bytes() / cluster.memory_bytes_per_s / assignment_s;
  const double scale =
      tokens.size() == 0 ? 1 : static_cast<double>(objective.batch) / static_cast<double>(tokens.size());
  for (std::size_t n = 0; n < weights.work.size(); ++n)
    weights.work[n] = expected_work(static_cast<double>(n) * scale, floor) / scale;
  return weights;
}

}  // namespace grace::joint
