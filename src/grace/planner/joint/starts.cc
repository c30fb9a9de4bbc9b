#include "grace/planner/joint/starts.h"

#include <algorithm>
#include <numeric>
#include <queue>

#include "grace/base/check.h"
#include "grace/grouping/grouping.h"
#include "grace/planner/joint/bitset_partition.h"

namespace grace::joint {
namespace {

std::vector<int> nodes_of_devices(const Cluster& cluster) {
  std::vector<int> nodes;
  for (int d = 0; d < cluster.num_devices(); ++d) nodes.push_back(cluster.node_of(DeviceId(d)).value);
  return nodes;
}

// With sources spread evenly a token finds one of N nodes to be its own, and one of L devices to be the
// entry.
double away_share(std::size_t of) { return 1 - 1 / static_cast<double>(of); }

PartitionProblem single_problem(const StartInput& input) {
  PartitionProblem problem;
  const auto devices = static_cast<std::size_t>(input.cluster.num_devices());
  const auto nodes = static_cast<std::size_t>(input.cluster.num_nodes());
  problem.num_experts = static_cast<std::size_t>(input.tokens.num_experts);
  problem.experts = input.tokens.experts;
  problem.begin = input.tokens.begin;
  problem.load.assign(input.tokens.load.begin(), input.tokens.load.end());
  problem.capacity.assign(input.slots.begin(), input.slots.end());
  problem.node_of_group = nodes_of_devices(input.cluster);
  problem.base_load.assign(devices, 0);
  problem.node_weight = input.weights.node * away_share(nodes);
  problem.device_weight = input.weights.device * away_share(std::max<std::size_t>(1, devices / nodes));
  problem.load_weight = input.weights.load;
  return problem;
}

// Groups as a partition that respects the capacities: what is too much goes to the emptiest device.
Partition partition_of(const std::vector<std::vector<ExpertId>>& groups, std::size_t num_experts,
                       std::span<const int> capacity) {
  Partition partition(num_experts, -1);
  std::vector<int> size(capacity.size(), 0);
  std::vector<std::size_t> homeless;
  for (std::size_t d = 0; d < groups.size(); ++d)
    for (const ExpertId e : groups[d]) {
      if (size[d] == capacity[d]) {
        homeless.push_back(e.idx());
        continue;
      }
      partition[e.idx()] = static_cast<int>(d);
      ++size[d];
    }
  for (const std::size_t e : homeless) {
    std::size_t emptiest = 0;
    for (std::size_t d = 1; d < size.size(); ++d)
      if (capacity[d] - size[d] > capacity[emptiest] - size[emptiest]) emptiest = d;
    partition[e] = static_cast<int>(emptiest);
    ++size[emptiest];
  }
  return partition;
}

Hosts hosts_of(const Partition& partition, std::size_t devices) {
  Hosts hosts(partition.size() * devices, 0);
  for (std::size_t e = 0; e < partition.size(); ++e)
    hosts[e * devices + static_cast<std::size_t>(partition[e])] = 1;
  return hosts;
}

// Experts by descending load, ties to the lower id.
std::vector<std::size_t> by_load(const std::vector<std::int64_t>& load) {
  std::vector<std::size_t> order(load.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return load[a] > load[b]; });
  return order;
}

// How many experts every node can hold beside its share of the rest.
std::size_t mirrored_experts(std::span<const int> node_slots, std::size_t num_experts) {
  const std::size_t nodes = node_slots.size();
  const auto total = static_cast<std::size_t>(std::accumulate(node_slots.begin(), node_slots.end(), 0));
  const auto least = static_cast<std::size_t>(*std::ranges::min_element(node_slots));
  return std::min({(total - num_experts) / (nodes - 1), num_experts, least});
}

// The cold experts over the nodes: few nodes to a token, loads even. Returns the node of each expert, -1 for
// the mirrored ones.
std::vector<int> split_cold(const StartInput& input, const std::vector<std::size_t>& order, std::size_t hot,
                            std::span<const int> node_slots) {
  constexpr std::size_t kHot = ~std::size_t{0};
  std::vector<std::size_t> index(order.size(), kHot);
  PartitionProblem problem;
  const std::size_t nodes = node_slots.size();
  for (std::size_t i = hot; i < order.size(); ++i) index[order[i]] = i - hot;
  problem.num_experts = order.size() - hot;
  for (std::size_t i = hot; i < order.size(); ++i)
    problem.load.push_back(static_cast<double>(input.tokens.load[order[i]]));
  for (std::size_t t = 0; t < input.tokens.size(); ++t) {
    for (const std::uint16_t e : input.tokens.of(t))
      if (index[e] != kHot) problem.experts.push_back(static_cast<std::uint16_t>(index[e]));
    // A token of one cold expert or none costs the same wherever that lies.
    problem.begin.push_back(static_cast<std::uint32_t>(problem.experts.size()));
  }
  double hot_load = 0;
  for (std::size_t i = 0; i < hot; ++i) hot_load += static_cast<double>(input.tokens.load[order[i]]);
  for (std::size_t n = 0; n < nodes; ++n) {
    problem.capacity.push_back(node_slots[n] - static_cast<int>(hot));
    problem.node_of_group.push_back(static_cast<int>(n));
    problem.base_load.push_back(hot_load / static_cast<double>(nodes));
  }
  problem.device_weight = input.weights.node * away_share(nodes);
  problem.load_weight = input.weights.load;
  const Partition split =
      anneal_partition(problem, packed_by_load(problem), input.proposals, input.rng.fork(1));
  std::vector<int> node_of(order.size(), -1);
  for (std::size_t i = hot; i < order.size(); ++i) node_of[order[i]] = split[i - hot];
  return node_of;
}

// Lays the experts of one node on its devices, for the tokens that are served there.
void lay_in_node(const StartInput& input, std::size_t node, const std::vector<int>& node_of, Hosts& hosts) {
  const auto first =
      static_cast<std::size_t>(input.cluster.first_device_of(NodeId(static_cast<int>(node))).value);
  const auto count = static_cast<std::size_t>(input.cluster.devices_in(NodeId(static_cast<int>(node))));
  const auto devices = static_cast<std::size_t>(input.cluster.num_devices());
  std::vector<std::size_t> experts;
  std::vector<int> index(node_of.size(), -1);
  for (std::size_t e = 0; e < node_of.size(); ++e) {
    if (node_of[e] != -1 && node_of[e] != static_cast<int>(node)) continue;
    index[e] = static_cast<int>(experts.size());
    experts.push_back(e);
  }
  PartitionProblem problem;
  problem.num_experts = experts.size();
  problem.load.assign(experts.size(), 0);
  for (std::size_t t = 0; t < input.tokens.size(); ++t) {
    const bool own = input.cluster.node_of(DeviceId(input.tokens.source[t])).value == static_cast<int>(node);
    const std::size_t before = problem.experts.size();
    for (const std::uint16_t e : input.tokens.of(t)) {
      if (index[e] < 0 || (!own && node_of[e] == -1)) continue;
      problem.experts.push_back(static_cast<std::uint16_t>(index[e]));
      problem.load[static_cast<std::size_t>(index[e])] += 1;
    }
    if (problem.experts.size() > before)
      problem.begin.push_back(static_cast<std::uint32_t>(problem.experts.size()));
  }
  for (std::size_t d = 0; d < count; ++d) problem.capacity.push_back(input.slots[first + d]);
  problem.node_of_group.assign(count, 0);
  problem.base_load.assign(count, 0);
  problem.device_weight = input.weights.device * away_share(count);
  // The load term is over all devices of the cluster, of which these are some.
  problem.load_weight = input.weights.load * static_cast<double>(count) / static_cast<double>(devices);
  const Partition partition =
      anneal_partition(problem, packed_by_load(problem), input.proposals, input.rng.fork(2 + node));
  for (std::size_t i = 0; i < experts.size(); ++i)
    hosts[experts[i] * devices + first + static_cast<std::size_t>(partition[i])] = 1;
}

}  // namespace

Hosts single_copies(const StartInput& input) {
  const PartitionProblem problem = single_problem(input);
  const auto num_experts = problem.num_experts;
  std::vector<Partition> starts{packed_by_load(problem)};
  starts.push_back(
      partition_of(contiguous_groups(input.tokens.num_experts, input.cluster), num_experts, input.slots));
  starts.push_back(
      partition_of(hierarchical_groups(input.stats, input.cluster, 0), num_experts, input.slots));
  Partition best;
  double best_value = 0;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    Partition found = anneal_partition(problem, starts[i], input.proposals, input.rng.fork(100 + i));
    const double value = value_of(problem, found);
    if (!best.empty() && value >= best_value) continue;
    best_value = value;
    best = std::move(found);
  }
  return hosts_of(best, input.slots.size());
}

Hosts mirrored(const StartInput& input) {
  const auto nodes = static_cast<std::size_t>(input.cluster.num_nodes());
  if (nodes < 2) return single_copies(input);
  const auto num_experts = static_cast<std::size_t>(input.tokens.num_experts);
  std::vector<int> node_slots(nodes, 0);
  for (std::size_t d = 0; d < input.slots.size(); ++d)
    node_slots[input.cluster.node_of(DeviceId(static_cast<int>(d))).idx()] += input.slots[d];
  for (int& slots : node_slots) slots = std::min(slots, static_cast<int>(num_experts));
  const std::vector<std::size_t> order = by_load(input.tokens.load);
  const std::size_t hot = mirrored_experts(node_slots, num_experts);
  const std::vector<int> node_of = split_cold(input, order, hot, node_slots);
  Hosts hosts(num_experts * input.slots.size(), 0);
  for (std::size_t n = 0; n < nodes; ++n) lay_in_node(input, n, node_of, hosts);
  return hosts;
}

void add_copies(RoutedState& state, std::span<const int> slots) {
  struct Candidate {
    double gain;
    std::uint16_t expert, device;
    std::size_t round;  // in which the gain was measured
    bool operator<(const Candidate& other) const {
      if (gain != other.gain) return gain < other.gain;
      return expert != other.expert ? expert > other.expert : device > other.device;
    }
  };
  const std::size_t devices = state.num_devices();
  const std::size_t num_experts = state.hosts().size() / devices;
  std::vector<int> free(slots.begin(), slots.end());
  for (std::size_t e = 0; e < num_experts; ++e)
    for (std::size_t d = 0; d < devices; ++d) free[d] -= state.is_host(e, d) ? 1 : 0;
  const auto gain_of = [&](std::uint16_t e, std::uint16_t d) {
    const double before = state.value();
    const HostChange change{e, d, true};
    if (!state.try_changes({&change, 1}, 0)) return -1.0;
    const double gain = before - state.value();
    state.rollback();
    return gain;
  };
  std::priority_queue<Candidate> heap;
  for (std::size_t e = 0; e < num_experts; ++e)
    for (std::size_t d = 0; d < devices; ++d)
      if (free[d] > 0 && !state.is_host(e, d))
        heap.push({gain_of(static_cast<std::uint16_t>(e), static_cast<std::uint16_t>(d)),
                   static_cast<std::uint16_t>(e), static_cast<std::uint16_t>(d), 0});
  std::size_t round = 0;
  while (!heap.empty()) {
    Candidate top = heap.top();
    heap.pop();
    if (free[top.device] == 0 || state.is_host(top.expert, top.device)) continue;
    if (top.round != round) {
      top.gain = gain_of(top.expert, top.device);
      top.round = round;
      heap.push(top);
      continue;
    }
    if (top.gain <= 0) break;
    const HostChange change{top.expert, top.device, true};
    if (!state.try_changes({&change, 1}, 1e9)) continue;
    state.commit();
    --free[top.device];
    ++round;
    if (round % 4 == 0) state.step_prices(0.3);
  }
}

}  // namespace grace::joint
