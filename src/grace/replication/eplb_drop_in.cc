// The published rule a second time, in float32 as its callers see it; eplb.cc's counts in double and knows
// devices that differ. What the original computes with tensors over all layers is a loop over layers here.
#include "grace/replication/eplb_drop_in.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include "grace/base/check.h"
#include "grace/replication/coactive_swaps.h"

namespace grace {
namespace {

// One layer as it is filled in.
struct LayerMaps {
  std::vector<std::int64_t> expert_of_slot;  // [P]
  std::vector<std::int64_t> rank_of_slot;    // [P]: which of its expert's copies it is
  std::vector<std::int64_t> count;           // [E]
};

// Items of each pack, heaviest first, each to the lightest pack with room; one item a pack stays in order.
std::vector<std::vector<std::size_t>> pack(std::span<const float> weight, std::size_t num_packs) {
  std::vector<std::vector<std::size_t>> items_of(num_packs);
  const std::size_t room = weight.size() / num_packs;
  if (room == 1) {
    for (std::size_t i = 0; i < num_packs; ++i) items_of[i] = {i};
    return items_of;
  }
  std::vector<std::size_t> order(weight.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return weight[a] > weight[b]; });
  std::vector<float> load(num_packs, 0);
  for (const std::size_t item : order) {
    std::size_t lightest = num_packs;
    for (std::size_t p = 0; p < num_packs; ++p)
      if (items_of[p].size() < room && (lightest == num_packs || load[p] < load[lightest])) lightest = p;
    items_of[lightest].push_back(item);
    load[lightest] += weight[item];
  }
  return items_of;
}

struct Copies {
  std::vector<std::size_t> item;  // of each copy, originals first
  std::vector<std::int64_t> rank;
  std::vector<std::int64_t> count;  // of each item
};

Copies replicate(std::span<const float> weight, std::size_t num_copies) {
  Copies copies;
  copies.item.resize(weight.size());
  std::iota(copies.item.begin(), copies.item.end(), std::size_t{0});
  copies.rank.assign(weight.size(), 0);
  copies.count.assign(weight.size(), 1);
  std::vector<float> share(weight.begin(), weight.end());
  while (copies.item.size() < num_copies) {
    const auto most = static_cast<std::size_t>(std::ranges::max_element(share) - share.begin());
    copies.item.push_back(most);
    copies.rank.push_back(copies.count[most]);
    share[most] = weight[most] / static_cast<float>(++copies.count[most]);
  }
  return copies;
}

LayerMaps rebalance_layer(std::span<const float> weight, const EplbArguments& shape) {
  const auto groups = static_cast<std::size_t>(shape.num_groups),
             nodes = static_cast<std::size_t>(shape.num_nodes),
             gpus = static_cast<std::size_t>(shape.num_gpus) / nodes,
             slots = static_cast<std::size_t>(shape.num_replicas) / nodes;
  const std::size_t group_size = weight.size() / groups;
  // Step 1: pack groups to nodes.
  std::vector<float> load_of_group(groups, 0);
  for (std::size_t e = 0; e < weight.size(); ++e) load_of_group[e / group_size] += weight[e];
  LayerMaps maps;
  maps.count.assign(weight.size(), 0);
  for (const std::vector<std::size_t>& groups_here : pack(load_of_group, nodes)) {
    std::vector<std::size_t> experts;
    std::vector<float> load;
    for (const std::size_t group : groups_here)
      for (std::size_t e = group * group_size; e < (group + 1) * group_size; ++e) {
        experts.push_back(e);
        load.push_back(weight[e]);
      }
    // Step 2: construct redundant experts within the node.
    const Copies copies = replicate(load, slots);
    for (std::size_t i = 0; i < experts.size(); ++i) maps.count[experts[i]] = copies.count[i];
    // Step 3: pack the copies to its GPUs.
    std::vector<float> load_of_copy;
    for (const std::size_t i : copies.item)
      load_of_copy.push_back(load[i] / static_cast<float>(copies.count[i]));
    for (const std::vector<std::size_t>& copies_here : pack(load_of_copy, gpus))
      for (const std::size_t copy : copies_here) {
        maps.expert_of_slot.push_back(static_cast<std::int64_t>(experts[copies.item[copy]]));
        maps.rank_of_slot.push_back(copies.rank[copy]);
      }
  }
  return maps;
}

Status check(std::size_t weights, const EplbArguments& a) {
  constexpr std::int64_t kMost = std::int64_t{1} << 24;  // far above any model, and no product overflows
  for (const auto& [name, value] : {std::pair{"layers", a.num_layers},
                                    {"experts", a.num_experts},
                                    {"num_replicas", a.num_replicas},
                                    {"num_groups", a.num_groups},
                                    {"num_nodes", a.num_nodes},
                                    {"num_gpus", a.num_gpus}})
    if (value < 1 || value > kMost)
      return invalid_input(fmt::format("{}: {} is outside [1, {}]", name, value, kMost));
  GRACE_CHECK(weights == static_cast<std::size_t>(a.num_layers * a.num_experts), "weight is [L, E]");
  const bool hierarchical = a.num_groups % a.num_nodes == 0;
  if (hierarchical && a.num_experts % a.num_groups != 0)
    return invalid_input(
        fmt::format("num_groups: {} experts do not divide among {} groups", a.num_experts, a.num_groups));
  if (hierarchical && a.num_gpus % a.num_nodes != 0)
    return invalid_input(
        fmt::format("num_gpus: {} GPUs do not divide among {} nodes", a.num_gpus, a.num_nodes));
  if (a.num_replicas % a.num_gpus != 0)
    return invalid_input(fmt::format(
        "num_replicas: {} replicas do not divide among {} GPUs; the nearest that do are {} and {}",
        a.num_replicas, a.num_gpus, a.num_replicas / a.num_gpus * a.num_gpus,
        (a.num_replicas / a.num_gpus + 1) * a.num_gpus));
  if (a.num_replicas < a.num_experts)
    return invalid_input(
        fmt::format("num_replicas: {} replicas cannot hold {} experts once", a.num_replicas, a.num_experts));
  return {};
}

// As published, groups that do not divide among the nodes count for nothing.
EplbArguments with_levels(EplbArguments arguments) {
  if (arguments.num_groups % arguments.num_nodes != 0) arguments.num_groups = arguments.num_nodes = 1;
  return arguments;
}

EplbMaps joined(const std::vector<LayerMaps>& layers, const EplbArguments& shape) {
  EplbMaps maps;
  for (const LayerMaps& layer : layers)
    maps.most_copies = std::max(maps.most_copies, std::ranges::max(layer.count));
  const auto experts = static_cast<std::size_t>(shape.num_experts),
             most = static_cast<std::size_t>(maps.most_copies);
  maps.logical_to_physical.assign(layers.size() * experts * most, -1);
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const LayerMaps& layer = layers[l];
    maps.physical_to_logical.insert(maps.physical_to_logical.end(), layer.expert_of_slot.begin(),
                                    layer.expert_of_slot.end());
    maps.expert_count.insert(maps.expert_count.end(), layer.count.begin(), layer.count.end());
    for (std::size_t p = 0; p < layer.expert_of_slot.size(); ++p) {
      const std::size_t at = (l * experts + static_cast<std::size_t>(layer.expert_of_slot[p])) * most;
      maps.logical_to_physical[at + static_cast<std::size_t>(layer.rank_of_slot[p])] =
          static_cast<std::int64_t>(p);
    }
  }
  return maps;
}

std::vector<float> as_floats(std::span<const double> weight) {
  std::vector<float> rounded;
  rounded.reserve(weight.size());
  for (const double value : weight) rounded.push_back(static_cast<float>(value));
  return rounded;
}

Result<std::vector<LayerMaps>> rebalance_layers(std::span<const float> weight, const EplbArguments& arguments,
                                                ThreadPool& pool) {
  GRACE_TRY(check(weight.size(), arguments));
  for (std::size_t i = 0; i < weight.size(); ++i)
    if (std::isnan(weight[i]))
      return invalid_input(fmt::format("weight: layer {}, expert {} is NaN",
                                       i / static_cast<std::size_t>(arguments.num_experts),
                                       i % static_cast<std::size_t>(arguments.num_experts)));
  const EplbArguments shape = with_levels(arguments);
  const auto experts = static_cast<std::size_t>(shape.num_experts);
  std::vector<LayerMaps> layers(static_cast<std::size_t>(shape.num_layers));
  pool.for_each(layers.size(), [&](std::size_t l, int) {
    layers[l] = rebalance_layer(weight.subspan(l * experts, experts), shape);
  });
  return layers;
}

}  // namespace

Result<EplbMaps> eplb_rebalance(std::span<const float> weight, const EplbArguments& arguments,
                                ThreadPool& pool) {
  const std::vector<LayerMaps> layers = GRACE_TRY(rebalance_layers(weight, arguments, pool));
  return joined(layers, arguments);
}

Result<EplbMaps> eplb_rebalance(std::span<const double> weight, const EplbArguments& arguments,
                                ThreadPool& pool) {
  return eplb_rebalance(as_floats(weight), arguments, pool);
}

Result<EplbMaps> eplb_rebalance(std::span<const double> weight, std::span<const double> coactivation,
                                const EplbArguments& arguments, ThreadPool& pool) {
  std::vector<LayerMaps> layers = GRACE_TRY(rebalance_layers(as_floats(weight), arguments, pool));
  const auto experts = static_cast<std::size_t>(arguments.num_experts);
  GRACE_CHECK(coactivation.size() == layers.size() * experts * experts, "coactivation is [L, E, E]");
  for (std::size_t i = 0; i < coactivation.size(); ++i)
    if (!(coactivation[i] >= 0) || std::isinf(coactivation[i]))
      return invalid_input(
          fmt::format("coactivation: layer {}, experts {} and {}: {} is not a number of at least 0",
                      i / (experts * experts), i / experts % experts, i % experts, coactivation[i]));
  SwapShape shape;
  shape.num_gpus = static_cast<std::size_t>(arguments.num_gpus);
  // GPUs that do not divide among the nodes have no node that anything could be kept in.
  if (arguments.num_gpus % arguments.num_nodes == 0)
    shape.num_nodes = static_cast<std::size_t>(arguments.num_nodes);
  shape.within_nodes = arguments.num_groups % arguments.num_nodes == 0;
  pool.for_each(layers.size(), [&](std::size_t l, int) {
    LayerMaps& layer = layers[l];
    const std::vector<std::size_t> order = coactive_order(
        weight.subspan(l * experts, experts), coactivation.subspan(l * experts * experts, experts * experts),
        layer.expert_of_slot, layer.count, shape);
    LayerMaps moved = layer;
    for (std::size_t p = 0; p < order.size(); ++p) {
      moved.expert_of_slot[p] = layer.expert_of_slot[order[p]];
      moved.rank_of_slot[p] = layer.rank_of_slot[order[p]];
    }
    layer = std::move(moved);
  });
  return joined(layers, arguments);
}

std::vector<double> eplb_coactivation_kept(const EplbMaps& maps, std::span<const double> coactivation,
                                           const EplbArguments& arguments) {
  const auto experts = static_cast<std::size_t>(arguments.num_experts),
             slots = static_cast<std::size_t>(arguments.num_replicas),
             gpus = static_cast<std::size_t>(arguments.num_gpus);
  std::vector<double> kept;
  for (std::size_t l = 0; l < static_cast<std::size_t>(arguments.num_layers); ++l) {
    std::vector<bool> has(gpus * experts, false);
    for (std::size_t p = 0; p < slots; ++p)
      has[p / (slots / gpus) * experts + static_cast<std::size_t>(maps.physical_to_logical[l * slots + p])] =
          true;
    double sum = 0;
    for (std::size_t a = 0; a < experts; ++a)
      for (std::size_t b = 0; b < experts; ++b) {
        if (a == b) continue;
        double shared = 0;
        for (std::size_t g = 0; g < gpus; ++g) shared += has[g * experts + a] && has[g * experts + b] ? 1 : 0;
        const auto rarer = std::min(maps.expert_count[l * experts + a], maps.expert_count[l * experts + b]);
        sum += coactivation[(l * experts + a) * experts + b] * shared / static_cast<double>(rarer);
      }
    kept.push_back(sum / 2);
  }
  return kept;
}

}  // namespace grace
