#include "grace/planner/joint/bitset_partition.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "grace/base/check.h"
#include "grace/planner/joint/partition_search.h"

namespace grace::joint {
namespace {

// One random move or swap; returns whether there was one to make.
bool propose(PartitionSearch& search, const PartitionProblem& problem, Rng& rng, double temperature) {
  const std::size_t e = rng.below(problem.num_experts);
  const auto g = static_cast<std::size_t>(search.partition()[e]);
  const auto accepts = [&](double delta) {
    return delta <= 0 || (temperature > 0 && rng.uniform() < std::exp(-delta / temperature));
  };
  const std::size_t h = rng.below(search.num_groups());
  if (h != g && search.size_of(h) < problem.capacity[h]) {
    const double delta = search.move_delta(e, h);
    if (!accepts(delta)) return false;
    search.move(e, h, delta);
    return true;
  }
  const std::size_t f = rng.below(problem.num_experts);
  if (search.partition()[f] == search.partition()[e]) return false;
  const double delta = search.swap_delta(e, f);
  if (!accepts(delta)) return false;
  search.swap(e, f, delta);
  return true;
}

}  // namespace

double value_of(const PartitionProblem& problem, std::span<const int> partition) {
  const std::size_t groups = problem.capacity.size();
  const std::size_t nodes = groups == 0 ? 0 : static_cast<std::size_t>(problem.node_of_group.back()) + 1;
  std::vector<std::size_t> last_group(groups, 0), last_node(nodes, 0);
  std::int64_t group_touches = 0, node_touches = 0;
  for (std::size_t t = 0; t < problem.num_tokens(); ++t)
    for (std::uint32_t i = problem.begin[t]; i < problem.begin[t + 1]; ++i) {
      const auto g = static_cast<std::size_t>(partition[problem.experts[i]]);
      const auto n = static_cast<std::size_t>(problem.node_of_group[g]);
      if (last_group[g] != t + 1) ++group_touches;
      if (last_node[n] != t + 1) ++node_touches;
      last_group[g] = last_node[n] = t + 1;
    }
  std::vector<double> load = problem.base_load;
  load.resize(groups, 0);
  for (std::size_t e = 0; e < problem.num_experts; ++e)
    load[static_cast<std::size_t>(partition[e])] += problem.load[e];
  const double mean =
      std::accumulate(load.begin(), load.end(), 0.0) / static_cast<double>(std::max<std::size_t>(1, groups));
  return problem.device_weight * static_cast<double>(group_touches) +
         (nodes > 1 ? problem.node_weight * static_cast<double>(node_touches) : 0) +
         problem.load_weight * static_cast<double>(problem.num_tokens()) * load_value(load, mean);
}

Partition packed_by_load(const PartitionProblem& problem) {
  std::vector<std::size_t> order(problem.num_experts);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return problem.load[a] > problem.load[b]; });
  std::vector<double> load = problem.base_load;
  load.resize(problem.capacity.size(), 0);
  std::vector<int> size(load.size(), 0);
  Partition partition(problem.num_experts, 0);
  for (const std::size_t e : order) {
    std::size_t lightest = load.size();
    for (std::size_t g = 0; g < load.size(); ++g)
      if (size[g] < problem.capacity[g] && (lightest == load.size() || load[g] < load[lightest]))
        lightest = g;
    GRACE_CHECK(lightest < load.size(), "the capacities hold every expert");
    partition[e] = static_cast<int>(lightest);
    load[lightest] += problem.load[e];
    ++size[lightest];
  }
  return partition;
}

Partition anneal_partition(const PartitionProblem& problem, Partition start, std::size_t proposals, Rng rng) {
  if (problem.num_experts < 2 || problem.capacity.size() < 2 || problem.num_tokens() == 0) return start;
  PartitionSearch search(problem, std::move(start));
  Partition best = search.partition();
  double best_value = search.value();
  // From changes of a few tokens in a hundred to less than one token; of few experts each is worth more.
  const double each = std::max(1.0, 64 / static_cast<double>(problem.num_experts));
  const double hot = 2e-3 * each * std::abs(search.value());
  const double cold = 2e-6 * each * std::abs(search.value());
  for (std::size_t i = 0; i < proposals; ++i) {
    const double progress = static_cast<double>(i) / static_cast<double>(proposals);
    propose(search, problem, rng, hot * std::pow(cold / hot, progress));
    if (search.value() < best_value - 1e-9) {
      best_value = search.value();
      best = search.partition();
    }
  }
  PartitionSearch descent(problem, std::move(best));
  for (std::size_t i = 0; i < proposals / 4; ++i) propose(descent, problem, rng, 0);
  return descent.partition();
}

}  // namespace grace::joint
