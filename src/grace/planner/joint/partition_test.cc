#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "grace/planner/joint/bitset_partition.h"
#include "grace/planner/joint/joint_test_util.h"
#include "grace/planner/joint/partition_search.h"
#include "grace/planner/joint/popcount.h"

namespace grace::joint {
namespace {

PartitionProblem random_problem(Rng& rng, std::size_t num_experts, std::size_t num_tokens) {
  PartitionProblem problem;
  problem.num_experts = num_experts;
  problem.load.assign(num_experts, 0);
  for (std::size_t t = 0; t < num_tokens; ++t) {
    std::vector<std::uint16_t> experts(num_experts);
    std::iota(experts.begin(), experts.end(), std::uint16_t{0});
    rng.shuffle(std::span(experts));
    experts.resize(rng.below(std::min<std::uint64_t>(num_experts, 6) + 1));
    for (const std::uint16_t e : experts) {
      problem.experts.push_back(e);
      problem.load[e] += 1;
    }
    problem.begin.push_back(static_cast<std::uint32_t>(problem.experts.size()));
  }
  int node = 0;
  const std::size_t groups = 1 + rng.below(6);
  for (std::size_t g = 0; g < groups; ++g) {
    problem.node_of_group.push_back(node);
    if (g + 1 < groups && rng.below(2) == 0) ++node;
    problem.capacity.push_back(static_cast<int>((num_experts + groups - 1) / groups + rng.below(3)));
    problem.base_load.push_back(static_cast<double>(rng.below(20)));
  }
  problem.node_weight = 10 * rng.uniform();
  problem.device_weight = 3 * rng.uniform();
  problem.load_weight = rng.below(4) == 0 ? 0 : 5 * rng.uniform();
  return problem;
}

void expect_within_capacity(const PartitionProblem& problem, const Partition& partition) {
  std::vector<int> size(problem.capacity.size(), 0);
  for (const int g : partition) ++size[static_cast<std::size_t>(g)];
  for (std::size_t g = 0; g < size.size(); ++g) EXPECT_LE(size[g], problem.capacity[g]);
}

class APartition : public testing::TestWithParam<std::uint64_t> {};

TEST_P(APartition, ChangesItsValueByWhatItSaid) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  const std::size_t num_experts = 2 + rng.below(30);
  const PartitionProblem problem = random_problem(rng, num_experts, 1 + rng.below(300));
  PartitionSearch search(problem, packed_by_load(problem));
  const double scale = 1 + value_of(problem, search.partition());
  for (int i = 0; i < 300; ++i) {
    const std::size_t e = rng.below(num_experts), f = rng.below(num_experts);
    const std::size_t g = rng.below(search.num_groups());
    if (rng.below(2) == 0 && search.partition()[e] != static_cast<int>(g)) {
      search.move(e, g, search.move_delta(e, g));
    } else if (search.partition()[e] != search.partition()[f]) {
      search.swap(e, f, search.swap_delta(e, f));
    }
    ASSERT_NEAR(search.value(), value_of(problem, search.partition()), 1e-9 * scale) << "step " << i;
  }
}

TEST_P(APartition, KeepsTheCapacitiesAndIsNoWorseThanItsStart) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  const PartitionProblem problem = random_problem(rng, 1 + rng.below(30), rng.below(200));
  const Partition start = packed_by_load(problem);
  expect_within_capacity(problem, start);
  const Partition found = anneal_partition(problem, start, 2000, Rng(GetParam()));
  expect_within_capacity(problem, found);
  EXPECT_LE(value_of(problem, found), value_of(problem, start) + 1e-6);
  EXPECT_EQ(found, anneal_partition(problem, start, 2000, Rng(GetParam())));
}

TEST_P(APartition, OfFewExpertsIsTheBestOfAll) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  Rng rng(GetParam());
  const PartitionProblem problem = random_problem(rng, 2 + rng.below(6), 40);
  const std::size_t groups = problem.capacity.size();
  double best = value_of(problem, packed_by_load(problem));
  Partition partition(problem.num_experts, 0);
  while (true) {
    std::vector<int> size(groups, 0);
    bool fits = true;
    for (const int g : partition)
      fits = fits && ++size[static_cast<std::size_t>(g)] <= problem.capacity[static_cast<std::size_t>(g)];
    if (fits) best = std::min(best, value_of(problem, partition));
    std::size_t e = 0;
    while (e < partition.size() && ++partition[e] == static_cast<int>(groups)) partition[e++] = 0;
    if (e == partition.size()) break;
  }
  const Partition found = anneal_partition(problem, packed_by_load(problem), 20'000, Rng(GetParam()));
  EXPECT_LE(value_of(problem, found), best * 1.01 + 1e-9);
}

INSTANTIATE_TEST_SUITE_P(Seeds, APartition, testing::Range<std::uint64_t>(0, 40));

TEST(APopcount, OfIntersectionsIsThatOfEachBit) {
  Rng rng(5);
  for (std::size_t words = 0; words < 40; ++words) {
    std::vector<std::uint64_t> a(words), b(words), c(words);
    for (auto* set : {&a, &b, &c})
      for (std::uint64_t& word : *set) word = rng.next();
    std::int64_t both = 0, without = 0;
    for (std::size_t bit = 0; bit < 64 * words; ++bit) {
      const auto in = [&](const std::vector<std::uint64_t>& set) {
        return (set[bit / 64] >> bit % 64 & 1) != 0;
      };
      both += in(a) && in(b) ? 1 : 0;
      without += in(a) && in(b) && !in(c) ? 1 : 0;
    }
    EXPECT_EQ(count_and(a.data(), b.data(), words), both);
    EXPECT_EQ(count_and_not(a.data(), b.data(), c.data(), words), without);
  }
}

}  // namespace
}  // namespace grace::joint
