// Holding group sizes inside bounds while giving up as little affinity as a greedy pass can.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "grace/base/check.h"
#include "grace/grouping/grouping.h"

namespace grace {
namespace {

constexpr int kNoGroup = -1;

// Experts by position, their groups, and each expert's affinity to each group, kept up to date by every move.
class Membership {
 public:
  Membership(const LayerStats& stats, std::span<const ExpertId> experts, Grouping groups,
             std::size_t num_groups)
      : stats_(stats),
        experts_(experts),
        group_of_(std::move(groups)),
        sizes_(num_groups, 0),
        affinity_(experts.size() * num_groups, 0) {
    for (std::size_t i = 0; i < experts.size(); ++i) {
      GRACE_CHECK(group_of_[i] >= 0 && static_cast<std::size_t>(group_of_[i]) < num_groups,
                  "a group outside [0, k)");
      ++sizes_[group(i)];
      add_to_column(i, group(i), 1);
    }
  }

  std::size_t num_groups() const { return sizes_.size(); }
  std::size_t num_experts() const { return experts_.size(); }
  int size(std::size_t g) const { return sizes_[g]; }
  std::size_t group(std::size_t i) const { return static_cast<std::size_t>(group_of_[i]); }
  bool placed(std::size_t i) const { return group_of_[i] != kNoGroup; }
  std::int64_t affinity(std::size_t i, std::size_t g) const { return affinity_[i * num_groups() + g]; }
  std::int64_t load(std::size_t i) const { return stats_.load[experts_[i].idx()]; }
  ExpertId expert(std::size_t i) const { return experts_[i]; }
  const Grouping& groups() const { return group_of_; }

  void remove(std::size_t i) {
    --sizes_[group(i)];
    add_to_column(i, group(i), -1);
    group_of_[i] = kNoGroup;
  }
  void add(std::size_t i, std::size_t g) {
    group_of_[i] = static_cast<int>(g);
    ++sizes_[g];
    add_to_column(i, g, 1);
  }

 private:
  void add_to_column(std::size_t i, std::size_t g, std::int64_t sign) {
    for (std::size_t j = 0; j < experts_.size(); ++j)
      affinity_[j * num_groups() + g] += sign * stats_.between(experts_[i], experts_[j]);
  }

  const LayerStats& stats_;
  std::span<const ExpertId> experts_;
  Grouping group_of_;                   // [n]
  std::vector<int> sizes_;              // [k]
  std::vector<std::int64_t> affinity_;  // [n, k]
};

// Step 1: what an oversized group lets go, ranked by affinity to the group as it was. Returns it by
// descending load.
std::vector<std::size_t> take_overflow(Membership& members, std::span<const SizeBounds> bounds) {
  std::vector<std::size_t> overflow;
  for (std::size_t g = 0; g < members.num_groups(); ++g) {
    if (members.size(g) <= bounds[g].highest) continue;
    std::vector<std::size_t> own;
    for (std::size_t i = 0; i < members.num_experts(); ++i)
      if (members.placed(i) && members.group(i) == g) own.push_back(i);
    std::ranges::sort(own, [&](std::size_t a, std::size_t b) {
      const auto to_a = members.affinity(a, g);
      const auto to_b = members.affinity(b, g);
      return to_a != to_b ? to_a > to_b : members.expert(a) < members.expert(b);
    });
    for (std::size_t rank = static_cast<std::size_t>(bounds[g].highest); rank < own.size(); ++rank) {
      members.remove(own[rank]);
      overflow.push_back(own[rank]);
    }
  }
  std::ranges::sort(overflow, [&](std::size_t a, std::size_t b) {
    const auto load_a = members.load(a);
    const auto load_b = members.load(b);
    return load_a != load_b ? load_a > load_b : members.expert(a) < members.expert(b);
  });
  return overflow;
}

// Step 2: each overflow expert goes to the group with room that it is closest to.
void place_overflow(Membership& members, std::span<const SizeBounds> bounds,
                    const std::vector<std::size_t>& overflow) {
  for (const std::size_t i : overflow) {
    std::size_t best = members.num_groups();
    for (std::size_t g = 0; g < members.num_groups(); ++g) {
      if (members.size(g) >= bounds[g].highest) continue;
      if (best == members.num_groups() || members.affinity(i, g) > members.affinity(i, best)) best = g;
    }
    GRACE_CHECK(best < members.num_groups(), "no group has room");
    members.add(i, best);
  }
}

// Step 3: groups below their minimum take the experts that are weakest in groups above theirs.
void fill_up(Membership& members, std::span<const SizeBounds> bounds) {
  for (std::size_t g = 0; g < members.num_groups(); ++g) {
    while (members.size(g) < bounds[g].lowest) {
      std::size_t weakest = members.num_experts();
      for (std::size_t i = 0; i < members.num_experts(); ++i) {
        const std::size_t home = members.group(i);
        if (members.size(home) <= bounds[home].lowest) continue;
        if (weakest == members.num_experts()) {
          weakest = i;
          continue;
        }
        const auto mine = members.affinity(i, home);
        const auto least = members.affinity(weakest, members.group(weakest));
        if (mine < least || (mine == least && members.expert(i) < members.expert(weakest))) weakest = i;
      }
      GRACE_CHECK(weakest < members.num_experts(), "no group can spare an expert");
      members.remove(weakest);
      members.add(weakest, g);
    }
  }
}

}  // namespace

SizeBounds size_bounds(int num_experts, int num_groups, double r) {
  GRACE_CHECK(num_groups >= 1 && num_experts >= 0 && r >= 0,
              "at least one group and a bound that is not negative");
  const int mean = num_experts / num_groups;
  const int mean_up = (num_experts + num_groups - 1) / num_groups;
  if (r == 0) return {mean, mean_up};
  const int slack =
      static_cast<int>(std::max(1.0, std::min(std::round(mean * r), static_cast<double>(num_experts))));
  return {std::min(std::max(1, mean - slack), mean), std::max(mean + slack, mean_up)};
}

Grouping controlled_sizes(const LayerStats& stats, std::span<const ExpertId> experts, Grouping groups,
                          std::span<const SizeBounds> bounds_of_group) {
  GRACE_CHECK(groups.size() == experts.size(), "one group for each expert");
  std::int64_t lowest = 0;
  std::int64_t highest = 0;
  for (const SizeBounds& bounds : bounds_of_group) {
    lowest += bounds.lowest;
    highest += bounds.highest;
  }
  const auto n = static_cast<std::int64_t>(experts.size());
  GRACE_CHECK(lowest <= n && n <= highest, "the bounds do not enclose the number of experts");
  Membership members(stats, experts, std::move(groups), bounds_of_group.size());
  place_overflow(members, bounds_of_group, take_overflow(members, bounds_of_group));
  fill_up(members, bounds_of_group);
  return members.groups();
}

Grouping controlled_sizes(const LayerStats& stats, std::span<const ExpertId> experts, Grouping groups, int k,
                          SizeBounds bounds) {
  GRACE_CHECK(k >= 1, "at least one group");
  return controlled_sizes(stats, experts, std::move(groups),
                          std::vector<SizeBounds>(static_cast<std::size_t>(k), bounds));
}

}  // namespace grace
