// Choosing r: how much affinity a looser size bound keeps, against how uneven it makes the groups.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

#include "grace/base/check.h"
#include "grace/grouping/grouping.h"

namespace grace {
namespace {

constexpr int kNumPoints = 11;  // 0, 0.05, .. 0.5: the grid of the published method

constexpr double kTie = 1e-12;  // heights closer than this differ by rounding alone

double r_of_point(std::size_t point) { return static_cast<double>(point) / 20; }

double size_deviation(const std::vector<std::vector<ExpertId>>& groups, const Cluster& cluster) {
  double squares = 0;
  std::size_t first = 0;
  for (const std::vector<Device>& devices : cluster.devices_of_node) {
    std::size_t in_node = 0;
    for (std::size_t d = 0; d < devices.size(); ++d) in_node += groups[first + d].size();
    const std::size_t smallest = in_node / devices.size();  // m, rounded down as in the size bounds
    const auto mean = static_cast<double>(smallest);
    for (std::size_t d = 0; d < devices.size(); ++d) {
      const double off = static_cast<double>(groups[first + d].size()) - mean;
      squares += off * off;
    }
    first += devices.size();
  }
  return std::sqrt(squares / static_cast<double>(groups.size()));
}

double kept_by(const LayerStats& stats, const std::vector<std::vector<ExpertId>>& groups) {
  std::vector<int> group_of_expert(static_cast<std::size_t>(stats.num_experts), 0);
  for (std::size_t d = 0; d < groups.size(); ++d)
    for (const ExpertId e : groups[d]) group_of_expert[e.idx()] = static_cast<int>(d);
  return affinity_kept(stats, group_of_expert);
}

}  // namespace

std::vector<KneePoint> knee_curve(std::span<const LayerStats> layers, const Cluster& cluster,
                                  ThreadPool& pool) {
  std::vector<TwoLevels> levels(layers.size());
  pool.for_each(layers.size(), [&](std::size_t m, int) { levels[m] = two_levels(layers[m], cluster); });
  return knee_curve(layers, levels, cluster, pool);
}

std::vector<KneePoint> knee_curve(std::span<const LayerStats> layers, std::span<const TwoLevels> levels,
                                  const Cluster& cluster, ThreadPool& pool) {
  GRACE_CHECK(levels.size() == layers.size(), "two levels for each layer");
  std::vector<std::vector<KneePoint>> of_layer(layers.size());
  pool.for_each(layers.size(), [&](std::size_t m, int) {
    for (std::size_t p = 0; p < kNumPoints; ++p) {
      const auto groups = device_groups(layers[m], cluster, levels[m], r_of_point(p));
      of_layer[m].push_back({r_of_point(p), size_deviation(groups, cluster), kept_by(layers[m], groups)});
    }
  });
  std::vector<KneePoint> curve;
  for (std::size_t p = 0; p < kNumPoints; ++p) {
    KneePoint mean{r_of_point(p), 0, 0};
    for (const std::vector<KneePoint>& points : of_layer) {
      mean.size_deviation += points[p].size_deviation / static_cast<double>(layers.size());
      mean.affinity_kept += points[p].affinity_kept / static_cast<double>(layers.size());
    }
    curve.push_back(mean);
  }
  return curve;
}

std::size_t knee_of(std::span<const KneePoint> curve) {
  GRACE_CHECK(!curve.empty(), "a curve has points");
  std::vector<std::size_t> order(curve.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    if (curve[a].size_deviation != curve[b].size_deviation)
      return curve[a].size_deviation < curve[b].size_deviation;
    return curve[a].r != curve[b].r ? curve[a].r < curve[b].r : a < b;
  });
  const auto lower_r = [&](std::size_t a, std::size_t b) {
    return curve[a].r != curve[b].r ? curve[a].r < curve[b].r : a < b;
  };
  std::size_t knee = *std::ranges::min_element(order, lower_r);
  const auto [low_u, high_u] =
      std::ranges::minmax_element(curve, {}, [](const KneePoint& point) { return point.affinity_kept; });
  const KneePoint& from = curve[order.front()];
  const KneePoint& to = curve[order.back()];
  const double width = to.size_deviation - from.size_deviation;
  const double height = high_u->affinity_kept - low_u->affinity_kept;
  if (!(width > 0) || !(height > 0)) return knee;
  const double slope = (to.affinity_kept - from.affinity_kept) / height;  // of the chord, over a width of 1
  double farthest = -std::numeric_limits<double>::infinity();
  for (const std::size_t p : order) {
    const double x = (curve[p].size_deviation - from.size_deviation) / width;
    const double y = (curve[p].affinity_kept - from.affinity_kept) / height;
    // The height above the chord; its distance is this times a constant.
    const double above = y - slope * x;
    if (above > farthest + kTie || (above > farthest - kTie && lower_r(p, knee))) {
      farthest = above;
      knee = p;
    }
  }
  return knee;
}

}  // namespace grace
