#include "analysis.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "grace/base/rng.h"
#include "grace/files/json_file.h"
#include "grace/routing/routing.h"

namespace grace::app {
namespace {

constexpr int kRandomDraws = 20;

std::vector<int> device_of_primary(const LayerPlan& layer, int num_experts) {
  std::vector<int> device_of(static_cast<std::size_t>(num_experts), 0);
  for (std::size_t d = 0; d < layer.primaries_of_device.size(); ++d)
    for (const ExpertId expert : layer.primaries_of_device[d]) device_of[expert.idx()] = static_cast<int>(d);
  return device_of;
}

std::vector<int> node_of_device(const Plan& plan) {
  std::vector<int> node_of;
  for (std::size_t node = 0; node < plan.devices_per_node.size(); ++node)
    node_of.insert(node_of.end(), static_cast<std::size_t>(plan.devices_per_node[node]),
                   static_cast<int>(node));
  return node_of;
}

double max_over_mean_of(const std::vector<double>& load) {
  const double total = std::accumulate(load.begin(), load.end(), 0.0);
  return total > 0 ? *std::ranges::max_element(load) * static_cast<double>(load.size()) / total : 1;
}

std::string percent(double share) { return fmt::format("{:.1f} %", share * 100); }

}  // namespace

double busiest_quarter(const LayerStats& stats) {
  std::vector<std::int64_t> load = stats.load;
  std::ranges::sort(load, std::greater<>());
  const std::int64_t total = std::accumulate(load.begin(), load.end(), std::int64_t{0});
  const auto quarter = static_cast<std::ptrdiff_t>((load.size() + 3) / 4);
  if (total == 0) return 0;
  return static_cast<double>(std::accumulate(load.begin(), load.begin() + quarter, std::int64_t{0})) /
         static_cast<double>(total);
}

std::vector<LayerFigures> figures_of(const Plan& plan, std::span<const LayerStats> stats,
                                     std::uint64_t seed) {
  const std::vector<int> node_of = node_of_device(plan);
  std::vector<LayerFigures> layers;
  for (std::size_t m = 0; m < plan.layers.size() && m < stats.size(); ++m) {
    LayerFigures figures;
    std::vector<int> groups = device_of_primary(plan.layers[m], plan.num_experts);
    std::vector<int> nodes;
    std::vector<std::int64_t> load(static_cast<std::size_t>(plan.num_devices()), 0);
    for (std::size_t e = 0; e < groups.size(); ++e) {
      nodes.push_back(node_of[static_cast<std::size_t>(groups[e])]);
      load[static_cast<std::size_t>(groups[e])] += stats[m].load[e];
    }
    figures.kept_on_device = affinity_kept(stats[m], groups);
    figures.kept_in_node = affinity_kept(stats[m], nodes);
    figures.group_max_mean = max_over_mean(load);
    figures.routed_max_mean = max_over_mean_of(plan.layers[m].predicted_load);
    for (const auto& replicas : plan.layers[m].replicas_of_device)
      figures.copies += static_cast<int>(replicas.size());
    figures.busiest_quarter = busiest_quarter(stats[m]);
    Rng rng = Rng(seed).fork(m);
    for (int draw = 0; draw < kRandomDraws; ++draw) {
      rng.shuffle(std::span<int>(groups));
      figures.random_groups += affinity_kept(stats[m], groups) / kRandomDraws;
    }
    layers.push_back(figures);
  }
  return layers;
}

LayerFigures mean_of(std::span<const LayerFigures> layers) {
  LayerFigures mean{.group_max_mean = 0, .routed_max_mean = 0};
  const auto count = static_cast<double>(std::max<std::size_t>(layers.size(), 1));
  for (const LayerFigures& one : layers) {
    mean.kept_on_device += one.kept_on_device / count;
    mean.kept_in_node += one.kept_in_node / count;
    mean.random_groups += one.random_groups / count;
    mean.group_max_mean += one.group_max_mean / count;
    mean.routed_max_mean += one.routed_max_mean / count;
    mean.copies += one.copies;
    mean.busiest_quarter += one.busiest_quarter / count;
  }
  return mean;
}

report::Table table_of(const Plan& plan, std::span<const LayerFigures> layers) {
  report::Table table;
  table.title = fmt::format("{} over {} devices in {} nodes", plan.strategy, plan.num_devices(),
                            plan.devices_per_node.size());
  table.columns = {"layer",        "affinity kept", "random groups", "ratio",
                   "kept in node", "load max/mean", "with copies",   "copies"};
  const auto row = [&](const std::string& name, const LayerFigures& one) {
    const double ratio = one.random_groups > 0 ? one.kept_on_device / one.random_groups : 1;
    table.rows.push_back({name, percent(one.kept_on_device), percent(one.random_groups),
                          fmt::format("{:.2f}", ratio), percent(one.kept_in_node),
                          fmt::format("{:.2f}", one.group_max_mean),
                          fmt::format("{:.2f}", one.routed_max_mean), std::to_string(one.copies)});
  };
  for (std::size_t m = 0; m < layers.size(); ++m) row(std::to_string(plan.decoder_layers[m]), layers[m]);
  row("mean (copies: sum)", mean_of(layers));
  table.sortable = true;
  table.closing_rows = 1;
  return table;
}

Json json_of(std::span<const LayerFigures> layers) {
  Json list = Json::array();
  for (const LayerFigures& one : layers)
    list.push_back({{"affinity_kept", one.kept_on_device},
                    {"affinity_kept_in_node", one.kept_in_node},
                    {"affinity_kept_by_random_groups", one.random_groups},
                    {"group_load_max_over_mean", one.group_max_mean},
                    {"predicted_load_max_over_mean", one.routed_max_mean},
                    {"copies", one.copies},
                    {"busiest_quarter", one.busiest_quarter}});
  return list;
}

Result<Replay> replay(const Trace& trace, const Plan& plan, const Cluster& cluster, Dispatch dispatch) {
  const auto devices = static_cast<std::size_t>(cluster.num_devices()),
             top_k = static_cast<std::size_t>(trace.experts_per_token);
  Replay result;
  for (int m = 0; m < plan.num_moe_layers(); ++m) {
    const LayerPlan& layer = plan.layers[static_cast<std::size_t>(m)];
    HopCounter counter(cluster, dispatch);
    for (std::size_t source = 0; source < devices; ++source) {
      const auto router = GRACE_TRY(make_router(plan.routing, layer, plan.num_experts, cluster,
                                                DeviceId(static_cast<std::int32_t>(source))));
      std::vector<std::uint16_t> choices;
      for (auto s = source; s < static_cast<std::size_t>(trace.num_sequences()); s += devices)
        for (std::int64_t token = trace.sequence_offsets[s]; token < trace.sequence_offsets[s + 1]; ++token) {
          const auto chosen = trace.choices(token, MoeOrdinal(m));
          choices.insert(choices.end(), chosen.begin(), chosen.end());
        }
      std::vector<std::int32_t> device_of_choice(choices.size());
      router->route(choices, static_cast<int>(top_k), device_of_choice);
      counter.add(DeviceId(static_cast<std::int32_t>(source)), device_of_choice, static_cast<int>(top_k));
    }
    const HopCounts counts = counter.counts();
    result.vectors.emplace_back(counts.vectors.begin(), counts.vectors.end());
    result.load.push_back(counts.load);
  }
  return result;
}

}  // namespace grace::app
