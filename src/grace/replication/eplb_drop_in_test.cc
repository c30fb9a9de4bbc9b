#include "grace/replication/eplb_drop_in.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>
#include <sstream>

#include "grace/base/rng.h"

namespace grace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// What tools/make_eplb_fixtures.py writes: a case a line, answered by the original.
struct PublishedCase {
  EplbArguments arguments;
  std::vector<double> weight;
  EplbMaps maps;
};

std::vector<PublishedCase> published_cases(const std::string& path) {
  std::vector<PublishedCase> cases;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream numbers(line);
    const auto next = [&] {
      std::int64_t value = 0;
      numbers >> value;
      return value;
    };
    PublishedCase& one = cases.emplace_back();
    for (std::int64_t* value :
         {&one.arguments.num_layers, &one.arguments.num_experts, &one.arguments.num_replicas,
          &one.arguments.num_groups, &one.arguments.num_nodes, &one.arguments.num_gpus})
      *value = next();
    const std::int64_t rows = one.arguments.num_layers, experts = one.arguments.num_experts;
    for (std::int64_t i = 0; i < rows * experts; ++i) one.weight.push_back(static_cast<double>(next()));
    one.maps.most_copies = next();
    for (std::int64_t i = 0; i < rows * one.arguments.num_replicas; ++i)
      one.maps.physical_to_logical.push_back(next());
    for (std::int64_t i = 0; i < rows * experts * one.maps.most_copies; ++i)
      one.maps.logical_to_physical.push_back(next());
    for (std::int64_t i = 0; i < rows * experts; ++i) one.maps.expert_count.push_back(next());
  }
  return cases;
}

bool has_an_expert_twice_on_a_gpu(const PublishedCase& one) {
  const auto each = static_cast<std::size_t>(one.arguments.num_replicas / one.arguments.num_gpus);
  for (std::size_t p = 0; p < one.maps.physical_to_logical.size(); p += each) {
    const auto begin = one.maps.physical_to_logical.begin() + static_cast<std::ptrdiff_t>(p);
    std::vector<std::int64_t> here(begin, begin + static_cast<std::ptrdiff_t>(each));
    std::ranges::sort(here);
    if (std::ranges::adjacent_find(here) != here.end()) return true;
  }
  return false;
}

TEST(TheEplbDropIn, AnswersAsTheOriginalDid) {
  const std::vector<PublishedCase> cases = published_cases(GRACE_SOURCE_DIR "/tests/fixtures/eplb/cases.txt");
  ASSERT_EQ(cases.size(), 100U);
  EXPECT_GT(std::ranges::count_if(cases, has_an_expert_twice_on_a_gpu), 5);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE("line " + std::to_string(i + 1));
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      const Result<EplbMaps> maps = eplb_rebalance(cases[i].weight, cases[i].arguments, pool);
      ASSERT_TRUE(maps.ok()) << maps.error().message;
      EXPECT_EQ(maps.value(), cases[i].maps);
    }
  }
}

TEST(TheEplbDropIn, RefusesWhatTheOriginalAsserts) {
  ThreadPool pool(1);
  const std::vector<double> weight(12, 1);
  const auto refusal = [&](EplbArguments arguments) {
    const Result<EplbMaps> maps = eplb_rebalance(weight, arguments, pool);
    return maps.ok() ? std::string() : maps.error().message;
  };
  EXPECT_EQ(refusal({1, 12, 14, 4, 2, 4}),
            "num_replicas: 14 replicas do not divide among 4 GPUs; the nearest that do are 12 and 16");
  EXPECT_EQ(refusal({1, 12, 8, 4, 2, 4}), "num_replicas: 8 replicas cannot hold 12 experts once");
  EXPECT_EQ(refusal({1, 12, 20, 8, 2, 4}), "num_groups: 12 experts do not divide among 8 groups");
  EXPECT_EQ(refusal({1, 12, 15, 4, 2, 5}), "num_gpus: 5 GPUs do not divide among 2 nodes");
  EXPECT_THAT(refusal({1, 12, 12, 4, 0, 4}), HasSubstr("num_nodes: 0 is outside [1, "));
  EXPECT_EQ(refusal({1, 12, 15, 3, 2, 5}), "");  // groups do not divide among nodes: both count as one
  std::vector<double> broken = weight;
  broken[5] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(eplb_rebalance(broken, {2, 6, 6, 1, 1, 2}, pool).error().message,
            "weight: layer 0, expert 5 is NaN");
}

TEST(TheEplbDropIn, CountsInFloat32) {
  ThreadPool pool(1);
  // Equal in float32, so that the spare slot goes to the first; in double the second has more.
  const EplbMaps maps =
      eplb_rebalance(std::vector<double>{16777216, 16777217}, {1, 2, 3, 1, 1, 1}, pool).value();
  EXPECT_THAT(maps.expert_count, ElementsAre(2, 1));
}

TEST(TheEplbDropIn, GivesAllSpareSlotsOfASilentLayerToTheFirstExpert) {
  ThreadPool pool(1);
  const EplbMaps maps = eplb_rebalance(std::vector<double>(4, 0), {1, 4, 8, 1, 1, 4}, pool).value();
  EXPECT_THAT(maps.physical_to_logical, ElementsAre(0, 1, 2, 3, 0, 0, 0, 0));
  EXPECT_THAT(maps.expert_count, ElementsAre(5, 1, 1, 1));
}

// Pairs of a topic are chosen together; topics are strewn over the ids.
struct CoactiveCase {
  EplbArguments arguments;
  std::vector<double> weight, coactivation;
};
CoactiveCase coactive_case(std::uint64_t seed) {
  Rng rng(seed);
  CoactiveCase made;
  EplbArguments& a = made.arguments;
  a.num_layers = 2;
  a.num_nodes = 1 + static_cast<std::int64_t>(rng.below(2));
  a.num_gpus = a.num_nodes * (1 + static_cast<std::int64_t>(rng.below(3)));
  a.num_groups = rng.below(2) == 0 ? 1 : a.num_nodes;
  a.num_experts = a.num_gpus * (1 + static_cast<std::int64_t>(rng.below(5)));
  a.num_replicas = a.num_experts + a.num_gpus * static_cast<std::int64_t>(rng.below(3));
  const auto experts = static_cast<std::size_t>(a.num_experts);
  for (int l = 0; l < 2; ++l) {
    std::vector<std::uint64_t> topic(experts);
    for (std::uint64_t& t : topic) t = rng.below(4);
    for (std::size_t e = 0; e < experts; ++e) made.weight.push_back(static_cast<double>(1 + rng.below(1000)));
    for (std::size_t e = 0; e < experts; ++e)
      for (std::size_t f = 0; f < experts; ++f)
        made.coactivation.push_back(
            static_cast<double>(topic[e] == topic[f] ? 100 + rng.below(10) : rng.below(10)));
  }
  return made;
}

std::vector<double> fullest_of(const EplbMaps& maps, const CoactiveCase& made) {
  const EplbArguments& a = made.arguments;
  std::vector<double> fullest;
  const auto each = static_cast<std::size_t>(a.num_replicas / a.num_gpus),
             slots = static_cast<std::size_t>(a.num_replicas),
             experts = static_cast<std::size_t>(a.num_experts);
  for (std::size_t l = 0; l < 2; ++l) {
    std::vector<double> load(static_cast<std::size_t>(a.num_gpus), 0);
    for (std::size_t p = 0; p < slots; ++p) {
      const std::size_t e = l * experts + static_cast<std::size_t>(maps.physical_to_logical[l * slots + p]);
      load[p / each] += made.weight[e] / static_cast<double>(maps.expert_count[e]);
    }
    fullest.push_back(*std::ranges::max_element(load));
  }
  return fullest;
}

TEST(TheEplbDropInWithCoactivation, KeepsMoreAndNeverBalancesWorse) {
  double before = 0, after = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const CoactiveCase made = coactive_case(seed);
    ThreadPool one(1), three(3);
    const EplbMaps plain = eplb_rebalance(made.weight, made.arguments, one).value();
    const EplbMaps maps = eplb_rebalance(made.weight, made.coactivation, made.arguments, one).value();
    EXPECT_EQ(maps, eplb_rebalance(made.weight, made.coactivation, made.arguments, three).value());
    EXPECT_EQ(maps.expert_count, plain.expert_count);
    const std::vector<double> most = fullest_of(maps, made), bound = fullest_of(plain, made);
    for (std::size_t l = 0; l < most.size(); ++l) EXPECT_LE(most[l], bound[l] * (1 + 1e-12));
    // Every copy is where logical_to_physical says, once.
    std::vector<int> seen(maps.physical_to_logical.size(), 0);
    const auto slots = static_cast<std::size_t>(made.arguments.num_replicas),
               experts = static_cast<std::size_t>(made.arguments.num_experts),
               copies = static_cast<std::size_t>(maps.most_copies);
    for (std::size_t i = 0; i < maps.logical_to_physical.size(); ++i) {
      const std::int64_t p = maps.logical_to_physical[i];
      const std::size_t e = i / copies;
      EXPECT_EQ(p >= 0, static_cast<std::int64_t>(i % copies) < maps.expert_count[e]);
      if (p < 0) continue;
      const std::size_t at = e / experts * slots + static_cast<std::size_t>(p);
      ++seen[at];
      EXPECT_EQ(maps.physical_to_logical[at], static_cast<std::int64_t>(e % experts));
    }
    EXPECT_THAT(seen, testing::Each(1));
    for (const double kept : eplb_coactivation_kept(plain, made.coactivation, made.arguments)) before += kept;
    for (const double kept : eplb_coactivation_kept(maps, made.coactivation, made.arguments)) after += kept;
  }
  EXPECT_GT(after, 1.15 * before);
}

TEST(TheEplbDropInWithCoactivation, KeepsExpertGroupsOnTheirNodes) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    CoactiveCase made = coactive_case(seed);
    made.arguments.num_groups = made.arguments.num_nodes;
    ThreadPool pool(1);
    const EplbMaps plain = eplb_rebalance(made.weight, made.arguments, pool).value();
    const EplbMaps maps = eplb_rebalance(made.weight, made.coactivation, made.arguments, pool).value();
    const auto per_node = static_cast<std::ptrdiff_t>(made.arguments.num_replicas / made.arguments.num_nodes);
    for (std::ptrdiff_t at = 0; std::cmp_less(at, plain.physical_to_logical.size()); at += per_node)
      EXPECT_TRUE(std::is_permutation(plain.physical_to_logical.begin() + at,
                                      plain.physical_to_logical.begin() + at + per_node,
                                      maps.physical_to_logical.begin() + at));
  }
}

TEST(TheEplbDropInWithCoactivation, IsTheSameWithoutAny) {
  const CoactiveCase made = coactive_case(3);
  ThreadPool pool(1);
  const std::vector<double> none(made.coactivation.size(), 0);
  EXPECT_EQ(eplb_rebalance(made.weight, none, made.arguments, pool).value(),
            eplb_rebalance(made.weight, made.arguments, pool).value());
  std::vector<double> broken = none;
  broken[1] = -1;
  EXPECT_EQ(eplb_rebalance(made.weight, broken, made.arguments, pool).error().message,
            "coactivation: layer 0, experts 0 and 1: -1 is not a number of at least 0");
}

}  // namespace
}  // namespace grace
