#include "grace/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "grace/base/check.h"

namespace grace {

std::vector<std::vector<DeviceId>> LayerPlan::hosts_of_expert(int num_experts) const {
  std::vector<std::vector<DeviceId>> hosts(static_cast<std::size_t>(num_experts));
  for (const auto* devices : {&primaries_of_device, &replicas_of_device}) {
    for (std::size_t device = 0; device < devices->size(); ++device) {
      for (const ExpertId expert : (*devices)[device]) {
        GRACE_CHECK(expert.value >= 0 && expert.value < num_experts, "no such expert");
        hosts[expert.idx()].push_back(DeviceId(static_cast<int>(device)));
      }
    }
  }
  return hosts;
}

std::vector<ExpertId> LayerPlan::experts_on(DeviceId device) const {
  std::vector<ExpertId> experts = primaries_of_device[device.idx()];
  const std::vector<ExpertId>& replicas = replicas_of_device[device.idx()];
  experts.insert(experts.end(), replicas.begin(), replicas.end());
  std::ranges::sort(experts);
  return experts;
}

int Plan::num_devices() const {
  int count = 0;
  for (const int devices : devices_per_node) count += devices;
  return count;
}

bool Plan::is_lossy() const {
  return std::ranges::any_of(layers,
                             [](const LayerPlan& layer) { return !layer.partners_of_expert.empty(); });
}

int Plan::max_slots(DeviceId device) const {
  std::size_t most = 0;
  for (const LayerPlan& layer : layers) {
    most = std::max(
        most, layer.primaries_of_device[device.idx()].size() + layer.replicas_of_device[device.idx()].size());
  }
  return static_cast<int>(most);
}

Plan vanilla_plan(std::string model, int num_experts, std::vector<int> decoder_layers,
                  const Cluster& cluster) {
  GRACE_CHECK(num_experts >= 1, "a MoE layer has experts");
  const int num_devices = cluster.num_devices();
  LayerPlan layer;
  layer.replicas_of_device.resize(static_cast<std::size_t>(num_devices));
  int next = 0;
  for (int device = 0; device < num_devices; ++device) {
    const int size = num_experts / num_devices + (device < num_experts % num_devices ? 1 : 0);
    std::vector<ExpertId>& group = layer.primaries_of_device.emplace_back();
    for (int i = 0; i < size; ++i) group.push_back(ExpertId(next++));
    layer.predicted_load.push_back(size);
  }
  Plan plan;
  plan.model = std::move(model);
  plan.num_experts = num_experts;
  plan.decoder_layers = std::move(decoder_layers);
  for (int node = 0; node < cluster.num_nodes(); ++node)
    plan.devices_per_node.push_back(cluster.devices_in(NodeId(node)));
  plan.strategy = "vanilla";
  plan.layers.assign(plan.decoder_layers.size(), layer);
  return plan;
}

std::vector<int> cover_layers(Plan& plan, const std::vector<int>& decoder_layers, const Cluster& cluster) {
  GRACE_CHECK(plan.num_devices() == cluster.num_devices(), "a plan for another number of devices");
  std::vector<int> lacking;
  std::ranges::set_difference(decoder_layers, plan.decoder_layers, std::back_inserter(lacking));
  const Plan vanilla = vanilla_plan(plan.model, plan.num_experts, lacking, cluster);
  for (std::size_t i = 0; i < lacking.size(); ++i) {
    const auto at = std::ranges::lower_bound(plan.decoder_layers, lacking[i]) - plan.decoder_layers.begin();
    plan.decoder_layers.insert(plan.decoder_layers.begin() + at, lacking[i]);
    plan.layers.insert(plan.layers.begin() + at, vanilla.layers[i]);
  }
  return lacking;
}

Status check_fits(const Plan& plan, int num_experts, const std::vector<int>& decoder_layers,
                  std::string_view what) {
  if (plan.num_experts != num_experts) {
    return invalid_input(
        fmt::format("the plan is for {} experts a layer, {} has {}", plan.num_experts, what, num_experts));
  }
  const std::vector<int>& planned = plan.decoder_layers;
  const std::size_t common = std::min(planned.size(), decoder_layers.size());
  for (std::size_t ordinal = 0; ordinal < common; ++ordinal) {
    if (planned[ordinal] != decoder_layers[ordinal]) {
      return invalid_input(
          fmt::format("the plan's MoE layer {} is decoder layer {}, that of {} is decoder layer {}", ordinal,
                      planned[ordinal], what, decoder_layers[ordinal]));
    }
  }
  if (planned.size() != decoder_layers.size()) {
    const bool lacks = planned.size() < decoder_layers.size();
    return invalid_input(fmt::format("the plan is for {} MoE layers, {} has {}: decoder layer {} is {}",
                                     planned.size(), what, decoder_layers.size(),
                                     (lacks ? decoder_layers : planned)[common],
                                     lacks ? "not in the plan" : "no MoE layer of it"));
  }
  return {};
}

Status check_partners(const Plan& plan, int experts_per_token) {
  for (std::size_t ordinal = 0; ordinal < plan.layers.size(); ++ordinal) {
    const auto& partners = plan.layers[ordinal].partners_of_expert;
    for (std::size_t expert = 0; expert < partners.size(); ++expert)
      if (std::cmp_less(partners[expert].size(), experts_per_token - 1))
        return invalid_input(
            fmt::format("the plan's layer {}: expert {} has {} partners, a token chooses {} besides its best",
                        ordinal, expert, partners[expert].size(), experts_per_token - 1));
  }
  return {};
}

}  // namespace grace
