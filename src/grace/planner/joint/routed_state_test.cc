#include "grace/planner/joint/routed_state.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>

#include "grace/planner/joint/bitset_partition.h"
#include "grace/planner/joint/joint_test_util.h"

namespace grace::joint {
namespace {

using testing::ElementsAreArray;

// A random problem of either kind of objective, everything a state refers to kept alive.
struct Problem {
  explicit Problem(std::uint64_t seed) : rng(seed), cluster(random_cluster(rng)) {
    for (std::vector<Device>& node : cluster.devices_of_node)
      for (Device& device : node) device.speed = 0.5 + rng.uniform();
    const int devices = cluster.num_devices();
    num_experts = 2 + static_cast<int>(rng.below(20));
    tokens =
        all_tokens(random_trace(rng, 1 + static_cast<int>(rng.below(500)), num_experts, 4), devices, seed);
    Objective objective;
    objective.aim = seed % 3 == 0 ? Aim::kLayerTime : seed % 3 == 1 ? Aim::kJudgeSlow : Aim::kJudgeFast;
    objective.sizes = {.hidden = 64, .expert_ffn = 96};
    objective.batch = 256;
    weights = weights_of(objective, cluster, tokens);
    slots = random_slots(rng, num_experts, devices, 4);
    hosts = random_hosts(rng, num_experts, slots);
  }
  RoutedState state() const { return RoutedState(cluster, tokens, weights, hosts); }

  Rng rng;
  Cluster cluster;
  int num_experts = 0;
  SearchTokens tokens;
  Weights weights;
  std::vector<int> slots;
  Hosts hosts;
};

// Mean over the halves of the largest work share, moved by what the half's load share is above the load
// share.
double over_halves_counted(const Problem& problem, const RoutedState& state,
                           const std::vector<double>& work_share) {
  const std::size_t devices = state.num_devices();
  double sum = 0;
  for (std::size_t r = 0; r < kHalves; ++r) {
    std::vector<double> all(devices, 0), half(devices, 0);
    for (std::size_t t = 0; t < problem.tokens.size(); ++t)
      for (std::size_t i = problem.tokens.begin[t]; i < problem.tokens.begin[t + 1]; ++i) {
        const auto d = static_cast<std::size_t>(state.device_of()[i]);
        all[d] += 1;
        if (((problem.tokens.halves[t] >> r) & 1) == 1) half[d] += 1;
      }
    const double all_sum = std::accumulate(all.begin(), all.end(), 0.0);
    const double half_sum = std::accumulate(half.begin(), half.end(), 0.0);
    double most = 0;
    for (std::size_t d = 0; d < devices; ++d) {
      const double off =
          half_sum > 0 ? (half[d] / half_sum - all[d] / all_sum) * static_cast<double>(devices) : 0;
      most = std::max(most, work_share[d] + off);
    }
    sum += most;
  }
  return sum / static_cast<double>(kHalves);
}

// The value of the assignments, counted from nothing.
double value_counted(const Problem& problem, const RoutedState& state) {
  const std::size_t devices = state.num_devices();
  Routed routed;
  std::vector<std::size_t> copy_load(devices * static_cast<std::size_t>(problem.num_experts), 0);
  for (std::size_t t = 0; t < problem.tokens.size(); ++t) {
    const std::size_t begin = problem.tokens.begin[t];
    const auto experts = problem.tokens.of(t);
    add_routed(problem.cluster, problem.tokens.source[t], state.device_of().subspan(begin, experts.size()),
               routed);
    for (std::size_t k = 0; k < experts.size(); ++k) {
      const auto d = static_cast<std::size_t>(state.device_of()[begin + k]);
      EXPECT_TRUE(state.is_host(experts[k], d)) << "token " << t;
      ++copy_load[static_cast<std::size_t>(experts[k]) * devices + d];
    }
  }
  double speed = 0, squares = 0;
  std::vector<double> work_share;  // [D] over the mean
  for (const double s : problem.weights.speed) speed += s;
  const double mean = static_cast<double>(problem.tokens.assignments) / speed;
  for (std::size_t d = 0; d < devices; ++d) {
    double work = 0;
    for (std::size_t e = 0; e < copy_load.size() / devices; ++e) {
      const std::size_t load = copy_load[e * devices + d];
      work += problem.weights.work[load];
      EXPECT_EQ(static_cast<std::size_t>(state.copy_load(e, d)), load);
    }
    work /= problem.weights.speed[d] * mean;
    work_share.push_back(work);
    squares += (work - 1) * (work - 1);
  }
  const double over = over_halves_counted(problem, state, work_share);
  const auto tokens = static_cast<double>(problem.tokens.size());
  return (problem.weights.node * static_cast<double>(routed.x) +
          problem.weights.device * static_cast<double>(routed.y)) /
             tokens +
         problem.weights.load * (over + kSpread * squares / static_cast<double>(devices));
}

// One to four changes that leave every expert a host and no copy twice.
std::vector<HostChange> random_changes(const RoutedState& state, Rng& rng) {
  const std::size_t devices = state.num_devices();
  const std::size_t experts = state.hosts().size() / devices;
  std::vector<HostChange> changes;
  std::vector<int> copies(experts);
  for (std::size_t e = 0; e < experts; ++e) copies[e] = state.copies_of(e);
  std::set<std::pair<std::size_t, std::size_t>> seen;
  for (std::size_t i = 1 + rng.below(4); i > 0; --i) {
    const std::size_t e = rng.below(experts), d = rng.below(devices);
    if (!seen.insert({e, d}).second) continue;
    const bool add = !state.is_host(e, d);
    if (!add && copies[e] == 1) continue;
    copies[e] += add ? 1 : -1;
    changes.push_back({static_cast<std::uint16_t>(e), static_cast<std::uint16_t>(d), add});
  }
  return changes;
}

class ARoutedState : public testing::TestWithParam<std::uint64_t> {};

TEST_P(ARoutedState, IsWorthWhatItsAssignmentsAreAfterAnyChanges) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Problem problem(GetParam());
  RoutedState state = problem.state();
  ASSERT_NEAR(state.value(), value_counted(problem, state), 1e-9 * (1 + state.value()));
  for (int i = 0; i < 150; ++i) {
    const std::vector<HostChange> changes = random_changes(state, problem.rng);
    const double before = state.value();
    const Hosts hosts = state.hosts();
    const std::vector<std::int32_t> device_of(state.device_of().begin(), state.device_of().end());
    const std::vector<double> work(state.work().begin(), state.work().end());
    // A limit that is often too low for the changes, so that giving up is tried too.
    const bool stands = state.try_changes(changes, problem.rng.below(2) == 0 ? 1e9 : 0);
    if (stands && problem.rng.below(2) == 0) {
      state.commit();
    } else {
      if (stands) state.rollback();
      EXPECT_EQ(state.value(), before);
      EXPECT_EQ(state.hosts(), hosts);
      EXPECT_THAT(state.device_of(), ElementsAreArray(device_of));
      EXPECT_THAT(state.work(), ElementsAreArray(work));
    }
    if (problem.rng.below(16) == 0) state.step_prices(0.5);
    ASSERT_NEAR(state.value(), value_counted(problem, state), 1e-9 * (1 + state.value())) << "step " << i;
  }
}

TEST_P(ARoutedState, IsTheSameHoweverItCameToItsHostsAndPrices) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Problem problem(GetParam());
  RoutedState wandered = problem.state();
  for (int i = 0; i < 20; ++i) {
    if (wandered.try_changes(random_changes(wandered, problem.rng), 1e9)) wandered.commit();
    wandered.step_prices(0.3);
  }
  const std::vector<double> prices(problem.cluster.num_devices(), problem.weights.load / 4);
  wandered.set_hosts(problem.hosts, prices);
  RoutedState fresh = problem.state();
  fresh.set_hosts(problem.hosts, prices);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(wandered.value(), fresh.value());
    EXPECT_THAT(wandered.device_of(), ElementsAreArray(fresh.device_of()));
    EXPECT_THAT(wandered.prices(), ElementsAreArray(fresh.prices()));
    wandered.step_prices(0.7);
    fresh.step_prices(0.7);
  }
}

TEST_P(ARoutedState, FitsPricesThatAreNoWorse) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  const Problem problem(GetParam());
  RoutedState state = problem.state();
  const double before = state.value();
  state.fit_prices(12);
  EXPECT_LE(state.value(), before);
  for (const double price : state.prices()) EXPECT_TRUE(std::isfinite(price) && price >= 0) << price;
  double loads = 0;
  for (const double load : state.loads()) loads += load;
  EXPECT_EQ(loads, static_cast<double>(problem.tokens.assignments));
}

INSTANTIATE_TEST_SUITE_P(Seeds, ARoutedState, testing::Range<std::uint64_t>(0, 40));

class ASample : public testing::TestWithParam<std::uint64_t> {};

TEST_P(ASample, IsOfTokensOfTheTraceSpreadOverItAndOverTheSources) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  const int num_tokens = 1 + static_cast<int>(rng.below(400));
  const int devices = 1 + static_cast<int>(rng.below(7));
  // Each token says where it stands: expert 0, and the two digits of its row in base 20.
  Trace trace = random_trace(rng, num_tokens, 64, 3);
  for (int t = 0; t < num_tokens; ++t) {
    const auto i = static_cast<std::size_t>(3 * t);
    trace.topk_ids[i] = 0;
    trace.topk_ids[i + 1] = static_cast<std::uint16_t>(1 + t / 20);
    trace.topk_ids[i + 2] = static_cast<std::uint16_t>(40 + t % 20);
  }
  const std::size_t wanted = 1 + rng.below(500);
  const SearchTokens tokens = sample_tokens(trace, MoeOrdinal(0), devices, wanted, Rng(GetParam()));
  const auto all = static_cast<std::size_t>(num_tokens);
  ASSERT_EQ(tokens.size(), std::min(wanted, all));
  std::vector<std::size_t> rows;
  std::vector<int> of_source(static_cast<std::size_t>(devices), 0);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const auto experts = tokens.of(t);
    ASSERT_EQ(experts.size(), 3u);
    rows.push_back(static_cast<std::size_t>((experts[1] - 1) * 20 + experts[2] - 40));
    ++of_source[tokens.source[t]];
  }
  EXPECT_LE(std::ranges::max(of_source) - std::ranges::min(of_source), 1);
  EXPECT_EQ(tokens.load[0], static_cast<std::int64_t>(tokens.size()));
  EXPECT_EQ(tokens.assignments, static_cast<std::int64_t>(3 * tokens.size()));
  std::ranges::sort(rows);
  EXPECT_TRUE(std::ranges::adjacent_find(rows) == rows.end()) << "a token twice";
  const std::size_t stride = all / tokens.size() + 1;
  EXPECT_LT(rows.front(), stride);
  for (std::size_t i = 1; i < rows.size(); ++i) EXPECT_LE(rows[i] - rows[i - 1], stride);
  EXPECT_LE(all - rows.back(), 2 * stride);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ASample, testing::Range<std::uint64_t>(0, 40));

TEST(ASampleOfALayer, LeavesOutTokensWithoutAChoice) {
  Rng rng(1);
  Trace trace = random_trace(rng, 50, 8, 2);
  std::fill(trace.topk_ids.begin() + 20, trace.topk_ids.begin() + 60, kNotRouted);
  const SearchTokens tokens = all_tokens(trace, 3, 1);
  EXPECT_EQ(tokens.size(), 30u);
  std::fill(trace.topk_ids.begin(), trace.topk_ids.end(), kNotRouted);
  EXPECT_EQ(all_tokens(trace, 3, 1).size(), 0u);
}

// What a copy costs a batch is a mean over batches: against draws of its number of assignments, each of
// `tokens` of the batch choosing it or not.
TEST(WorkInLayerTime, IsTheMeanOverBatchesOfStreamingOrArithmetic) {
  const Cluster cluster = cluster_of({2});
  Rng rng(3);
  const SearchTokens tokens = all_tokens(random_trace(rng, 400, 8, 2), 2, 1);
  Objective objective;
  objective.aim = Aim::kLayerTime;
  objective.sizes = {.hidden = 64, .expert_ffn = 96};
  for (const std::int64_t batch : {80, 400, 4000}) {
    objective.batch = batch;
    const Weights weights = weights_of(objective, cluster, tokens);
    const double floor = objective.sizes.expert_bytes() / cluster.memory_bytes_per_s /
                         (objective.sizes.flops_per_assignment() / cluster.flops_per_s);
    EXPECT_EQ(weights.work[0], 0);
    for (const std::size_t n : {1u, 20u, 100u, 300u}) {
      const double scale = static_cast<double>(batch) / static_cast<double>(tokens.size());
      const double mean = static_cast<double>(n) * scale;
      double sum = 0;
      constexpr int kDraws = 10'000;
      for (int draw = 0; draw < kDraws; ++draw) {
        // Poisson: arrivals with exponential gaps in a time of `mean`.
        int arrived = 0;
        for (double time = -std::log(1 - rng.uniform()); time < mean; time -= std::log(1 - rng.uniform()))
          ++arrived;
        sum += arrived == 0 ? 0 : std::max<double>(floor, arrived);
      }
      const double drawn = sum / kDraws / scale;
      EXPECT_NEAR(weights.work[n], drawn, 0.1 * drawn + 0.05) << "batch " << batch << ", n " << n;
      EXPECT_GE(weights.work[n], static_cast<double>(n) - 1e-9);
    }
  }
}

}  // namespace
}  // namespace grace::joint
