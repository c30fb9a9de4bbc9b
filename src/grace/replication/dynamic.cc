// Replication of GRACE-MoE's heaviest group. The paper prints W_p = W_max / (n + 1), which does not conserve
// load; by default a copied expert's own load is shared evenly by its copies, which is W_r / (n + 1) for each
// host when slots do not bind.
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

// The hot experts of the group, hottest first.
std::vector<ExpertId> hot_experts(const LayerStats& stats, const ReplicationRule& rule,
                                  std::vector<ExpertId> group, std::int64_t group_load, std::int64_t n) {
  std::vector<std::int64_t> heat(static_cast<std::size_t>(stats.num_experts), 0);
  for (const ExpertId e : group) {
    if (rule.hot_by == HotBy::kLoad) heat[e.idx()] = stats.load[e.idx()];
    if (rule.hot_by == HotBy::kCollaboration)
      for (const ExpertId other : group) heat[e.idx()] += stats.between(e, other);
  }
  std::ranges::sort(group, [&](ExpertId a, ExpertId b) {
    return heat[a.idx()] != heat[b.idx()] ? heat[a.idx()] > heat[b.idx()] : a < b;
  });
  std::size_t count = 0;
  if (rule.num_hot > 0) {
    count = std::min(group.size(), static_cast<std::size_t>(rule.num_hot));
  } else {
    for (std::int64_t sum = 0; sum * (1 + n) <= group_load * n; ++count)
      sum += stats.load[group[count].idx()];
  }
  group.resize(count);
  return group;
}

// Copies `expert` to the first n of `order` with a free slot. Returns how many took it.
std::size_t copy_expert(const LayerStats& stats, const Cluster& cluster, ExpertId expert,
                        const std::vector<std::size_t>& order, std::size_t heavy, std::size_t n,
                        LayerPlan& layer) {
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
  return hosts.size();
}

// The paper's formula in place of what copy_expert predicted.
void predict_as_published(const std::vector<std::int64_t>& loads, std::size_t heavy, std::int64_t copied_load,
                          std::int64_t n, LayerPlan& layer) {
  const double per_host = static_cast<double>(loads[heavy]) / static_cast<double>(n + 1);
  for (std::size_t d = 0; d < loads.size(); ++d) {
    layer.predicted_load[d] = static_cast<double>(loads[d]);
    if (!layer.replicas_of_device[d].empty()) layer.predicted_load[d] += per_host;
  }
  if (copied_load > 0) layer.predicted_load[heavy] += per_host - static_cast<double>(copied_load);
}

}  // namespace

void replicate_nothing(const LayerStats& stats, LayerPlan& layer) {
  const std::vector<std::int64_t> loads = loads_of_devices(stats, layer);
  layer.replicas_of_device.assign(loads.size(), {});
  layer.predicted_load.assign(loads.begin(), loads.end());
}

void replicate_heaviest_group(const LayerStats& stats, const Cluster& cluster, const ReplicationRule& rule,
                              LayerPlan& layer) {
  const std::size_t num_devices = layer.primaries_of_device.size();
  GRACE_CHECK(num_devices == static_cast<std::size_t>(cluster.num_devices()),
              "the layer is for another cluster");
  GRACE_CHECK(rule.num_hosts >= 0 && rule.num_hot >= 0, "a rule counts from 0");
  replicate_nothing(stats, layer);
  const std::vector<std::int64_t> loads = loads_of_devices(stats, layer);
  const std::int64_t total = std::accumulate(loads.begin(), loads.end(), std::int64_t{0});
  if (total == 0 || num_devices < 2) return;

  const auto heavy = static_cast<std::size_t>(std::ranges::max_element(loads) - loads.begin());
  // floor(rho) in whole numbers: W_max / (total / D).
  const auto devices = static_cast<std::int64_t>(num_devices);
  const std::int64_t wanted =
      rule.num_hosts > 0 ? rule.num_hosts : std::max<std::int64_t>(1, loads[heavy] * devices / total);
  const std::int64_t n = std::min(wanted, devices - 1);

  std::vector<std::size_t> order;
  for (std::size_t d = 0; d < num_devices; ++d)
    if (d != heavy) order.push_back(d);
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    return loads[a] != loads[b] ? loads[a] < loads[b] : a < b;
  });
  std::int64_t copied_load = 0;
  for (const ExpertId e : hot_experts(stats, rule, layer.primaries_of_device[heavy], loads[heavy], n))
    if (copy_expert(stats, cluster, e, order, heavy, static_cast<std::size_t>(n), layer) > 0)
      copied_load += stats.load[e.idx()];
  for (std::vector<ExpertId>& replicas : layer.replicas_of_device) std::ranges::sort(replicas);
  if (rule.predicted == PredictedLoads::kPublished) predict_as_published(loads, heavy, copied_load, n, layer);
}

void replicate_dynamic(const LayerStats& stats, const Cluster& cluster, LayerPlan& layer) {
  replicate_heaviest_group(stats, cluster, {}, layer);
}

}  // namespace grace
