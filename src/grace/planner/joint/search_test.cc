// The search against exhaustive search on cases that are small enough for it.
#include "grace/planner/joint/search.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <vector>

#include "grace/planner/joint/joint_test_util.h"

namespace grace::joint {
namespace {

// Calls `visit` with every way to fill the slots of all devices so that no expert is without a host. More
// copies never make the best routing worse, so that emptier placements need not be tried.
void for_each_placement(int num_experts, std::span<const int> slots,
                        const std::function<void(const Hosts&)>& visit) {
  const std::size_t devices = slots.size();
  Hosts hosts(static_cast<std::size_t>(num_experts) * devices, 0);
  const std::function<void(std::size_t)> fill = [&](std::size_t d) {
    if (d == devices) {
      for (std::size_t e = 0; e < static_cast<std::size_t>(num_experts); ++e)
        if (std::count(&hosts[e * devices], &hosts[e * devices] + devices, 1) == 0) return;
      visit(hosts);
      return;
    }
    for (std::uint32_t set = 0; set < 1u << num_experts; ++set) {
      if (std::popcount(set) != std::min(slots[d], num_experts)) continue;
      for (std::size_t e = 0; e < static_cast<std::size_t>(num_experts); ++e)
        hosts[e * devices + d] = (set >> e & 1) != 0 ? 1 : 0;
      fill(d + 1);
    }
  };
  fill(0);
}

constexpr int kTokens = 100, kTimes = 4;

// A case of its seed: every second one has a slot more on each device than one copy of each expert needs.
struct TinyCase {
  explicit TinyCase(int seed) {
    Rng rng(static_cast<std::uint64_t>(seed));
    const std::vector<std::vector<std::size_t>> machines{{2}, {3}, {1, 1}, {2, 1}, {1, 1, 1}, {1, 2}};
    const bool copies = seed % 2 == 1;
    cluster = cluster_of(machines[rng.below(machines.size())]);
    num_experts = 4 + static_cast<int>(rng.below(copies ? 2 : 3));
    const int top_k = 2 + static_cast<int>(rng.below(2));
    objective.aim = rng.below(2) == 0 ? Aim::kJudgeSlow : Aim::kJudgeFast;
    const int devices = cluster.num_devices();
    slots.assign(static_cast<std::size_t>(devices), (num_experts + devices - 1) / devices + (copies ? 1 : 0));
    trace = random_trace(rng, kTokens, num_experts, top_k);
    const std::vector<std::uint16_t> once = trace.topk_ids;
    for (int i = 1; i < kTimes; ++i) trace.topk_ids.insert(trace.topk_ids.end(), once.begin(), once.end());
    trace.sequence_offsets.clear();
    for (int i = 0; i <= kTimes * kTokens; i += kTokens / 4) trace.sequence_offsets.push_back(i);
  }

  Cluster cluster;
  int num_experts = 0;
  Objective objective;
  std::vector<int> slots;
  Trace trace;
};

// What the search finds over the least of all placements, each routed at prices fitted to it, over the tokens
// that the search sees.
double found_over_least(const TinyCase& tiny) {
  ThreadPool pool(1);
  const LayerStats stats = count_layers(tiny.trace, pool).front();
  const LayerProblem problem{tiny.cluster, stats,          tiny.trace, tiny.trace, MoeOrdinal(0),
                             tiny.slots,   tiny.objective, 1,          Rng(7)};
  const auto solutions = search_layer(problem);
  const LayerSolution& solution = *std::ranges::min_element(solutions, {}, &LayerSolution::searched);

  const SearchTokens tokens = searched_tokens(problem);
  const Weights weights = weights_of(tiny.objective, tiny.cluster, tokens);
  RoutedState state(tiny.cluster, tokens, weights, hosts_of(solution.plan, tiny.num_experts));
  const std::vector<double> even(state.prices().begin(), state.prices().end());
  state.set_prices(solution.plan.cover.price);
  const double found = state.objective();
  EXPECT_DOUBLE_EQ(found, solution.searched);

  double least = std::numeric_limits<double>::infinity();
  for_each_placement(tiny.num_experts, tiny.slots, [&](const Hosts& hosts) {
    state.set_hosts(hosts, even);
    state.fit_prices(24);
    least = std::min(least, state.objective());
  });
  return found / least;
}

TEST(TinyCases, AreSolvedAsWellAsByExhaustiveSearch) {
  constexpr int kCases = 36;
  int above = 0;
  for (int seed = 0; seed < kCases; ++seed) {
    const double ratio = found_over_least(TinyCase(seed));
    EXPECT_LE(ratio, 1.02) << "case " << seed;
    above += ratio > 1.01 ? 1 : 0;
  }
  EXPECT_LE(above, 1);
  RecordProperty("above_one_percent", above);
}

}  // namespace
}  // namespace grace::joint
