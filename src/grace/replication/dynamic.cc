// Dynamic replication of GRACE-MoE. The paper prints W_p = W_max / (n + 1), which does not conserve load;
// here a copied expert's own load is shared evenly by its copies, which is W_r / (n + 1) for each host when
// slots do not bind.
#include <algorithm>
#include <cstddef>
#include <numeric>

#include "grace/base/check.h"
#include "grace/replication/replication.h"

namespace grace {
namespace {

std::vector<std::int64_t> loads_of_devices(const LayerStats& stats, const LayerPlan& layer) {
  std::vector<std::int64_t> loads;
  for (const std::vector<ExpertId>& group : layer.primaries_of_device) {
    std::int64_t sum = 0;
    for (const ExpertId e : group) sum += stats.load[e.idx()];
    loads.push_back(sum);
  }
  return loads;
}

// The shortest prefix by descending load whose sum exceeds W_max * n / (1 + n).
std::vector<ExpertId> hot_experts(const LayerStats& stats, std::vector<ExpertId> group,
                                  std::int64_t group_load, std::int64_t n) {
  std::ranges::sort(group, [&](ExpertId a, ExpertId b) {
    const std::int64_t load_a = stats.load[a.idx()];
    const std::int64_t load_b = stats.load[b.idx()];
    return load_a != load_b ? load_a > load_b : a < b;
  });
  std::int64_t sum = 0;
  std::size_t count = 0;
  while (sum * (1 + n) <= group_load * n) sum += stats.load[group[count++].idx()];
  group.resize(count);
  return group;
}

// Copies `expert` to the first n of `order` with a free slot and shares its load among all its copies.
void copy_expert(const LayerStats& stats, const Cluster& cluster, ExpertId expert,
                 const std::vector<std::size_t>& order, std::size_t heavy, std::size_t n, LayerPlan& layer) {
  std::vector<std::size_t> hosts;
  for (const std::size_t d : order) {
    if (hosts.size() == n) break;
    const std::size_t held = layer.primaries_of_device[d].size() + layer.replicas_of_device[d].size();
    const int slots = cluster.device(DeviceId(static_cast<std::int32_t>(d))).slots;
    if (slots == 0 || held < static_cast<std::size_t>(slots)) hosts.push_back(d);
  }
  const auto load = static_cast<double>(stats.load[expert.idx()]);
  const double share = load / static_cast<double>(hosts.size() + 1);
  layer.predicted_load[heavy] += share - load;
  for (const std::size_t d : hosts) {
    layer.replicas_of_device[d].push_back(expert);
    layer.predicted_load[d] += share;
  }
}

}  // namespace

void replicate_dynamic(const LayerStats& stats, const Cluster& cluster, LayerPlan& layer) {
  const std::size_t num_devices = layer.primaries_of_device.size();
  GRACE_CHECK(num_devices == static_cast<std::size_t>(cluster.num_devices()),
              "the layer is for another cluster");
  const std::vector<std::int64_t> loads = loads_of_devices(stats, layer);
  const std::int64_t total = std::accumulate(loads.begin(), loads.end(), std::int64_t{0});
  layer.replicas_of_device.assign(num_devices, {});
  layer.predicted_load.assign(loads.begin(), loads.end());
  if (total == 0 || num_devices < 2) return;

  const auto heavy = static_cast<std::size_t>(std::ranges::max_element(loads) - loads.begin());
  // floor(rho) in whole numbers: W_max / (total / D).
  const auto devices = static_cast<std::int64_t>(num_devices);
  const std::int64_t n = std::min(std::max<std::int64_t>(1, loads[heavy] * devices / total), devices - 1);

  std::vector<std::size_t> order;
  for (std::size_t d = 0; d < num_devices; ++d)
    if (d != heavy) order.push_back(d);
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    return loads[a] != loads[b] ? loads[a] < loads[b] : a < b;
  });
  for (const ExpertId e : hot_experts(stats, layer.primaries_of_device[heavy], loads[heavy], n))
    copy_expert(stats, cluster, e, order, heavy, static_cast<std::size_t>(n), layer);
  for (std::vector<ExpertId>& replicas : layer.replicas_of_device) std::ranges::sort(replicas);
}

}  // namespace grace
