#include "grace/interop/slot_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <queue>
#include <utility>

#include "grace/base/check.h"
#include "grace/base/findings.h"
#include "grace/base/limits.h"

namespace grace {
namespace {

constexpr std::size_t kMaxLines = 20;

void check_rows(const SlotMap& map, Findings& found) {
  std::vector<bool> has_slot;
  for (std::size_t m = 0; m < map.expert_of_slot.size() && !found.full(); ++m) {
    const std::vector<std::int32_t>& row = map.expert_of_slot[m];
    if (std::cmp_not_equal(row.size(), map.num_slots())) {
      found.add("layer {}: {} slots, layer 0 has {}", m, row.size(), map.num_slots());
      continue;
    }
    has_slot.assign(static_cast<std::size_t>(map.num_experts), false);
    for (std::size_t p = 0; p < row.size() && !found.full(); ++p) {
      if (row[p] == kEmptySlot) continue;
      if (row[p] < 0 || row[p] >= map.num_experts)
        found.add("layer {}: slot {} has expert {}, which is outside [0, {})", m, p, row[p], map.num_experts);
      else
        has_slot[static_cast<std::size_t>(row[p])] = true;
    }
    for (std::size_t e = 0; e < has_slot.size() && !found.full(); ++e)
      if (!has_slot[e]) found.add("layer {}: expert {} has no slot", m, e);
  }
}

// One layer while its spare slots fill.
class Layer {
 public:
  Layer(const LayerPlan& plan, std::vector<double> load, std::size_t slots)
      : load_(std::move(load)), slots_(slots), copies_(load_.size(), 0) {
    for (std::size_t d = 0; d < plan.primaries_of_device.size(); ++d) {
      experts_of_device_.push_back(plan.experts_on(DeviceId(static_cast<int>(d))));
      for (const ExpertId e : experts_of_device_.back()) ++copies_[e.idx()];
    }
    holds_.assign(experts_of_device_.size() * load_.size(), false);
    load_of_device_.assign(experts_of_device_.size(), 0);
    for (std::size_t d = 0; d < experts_of_device_.size(); ++d) {
      for (const ExpertId e : experts_of_device_[d]) holds_[at(d, e)] = true;
      add_up(d);
    }
  }

  // Copies for the spare slots of devices that lack an expert.
  std::int64_t add_copies() {
    std::int64_t added = 0;
    using Candidate = std::tuple<double, int, std::int32_t>;  // load a copy, minus copies, minus the id
    std::priority_queue<Candidate> candidates;
    const auto push = [&](ExpertId e) { candidates.emplace(share_of(e), -copies_[e.idx()], -e.value); };
    for (std::size_t e = 0; e < load_.size(); ++e) push(ExpertId(static_cast<std::int32_t>(e)));
    while (!candidates.empty()) {
      const ExpertId next(-std::get<2>(candidates.top()));
      candidates.pop();
      // Where no device with room lacks it now, none ever will.
      const std::size_t host = lightest_without(next);
      if (host == experts_of_device_.size()) continue;
      place(host, next);
      ++added;
      push(next);
    }
    return added;
  }

  // What is left of a device that holds every expert.
  std::int64_t repeat() {
    std::int64_t repeated = 0;
    for (std::vector<ExpertId>& experts : experts_of_device_)
      for (std::size_t i = 0; experts.size() < slots_; ++i, ++repeated)
        experts.push_back(ExpertId(static_cast<std::int32_t>(i % load_.size())));
    return repeated;
  }

  std::vector<std::int32_t> in_order(const SlotMap* before, std::size_t m) const {
    std::vector<std::int32_t> row;
    for (std::size_t d = 0; d < experts_of_device_.size(); ++d) {
      std::vector<std::int32_t> experts;
      for (const ExpertId e : experts_of_device_[d]) experts.push_back(e.value);
      std::ranges::sort(experts);
      if (before != nullptr)
        experts = kept_in_place(std::move(experts), before->slots_of(m, DeviceId(static_cast<int>(d))));
      row.insert(row.end(), experts.begin(), experts.end());
    }
    return row;
  }

 private:
  std::size_t at(std::size_t d, ExpertId e) const { return d * load_.size() + e.idx(); }
  double share_of(ExpertId e) const { return load_[e.idx()] / copies_[e.idx()]; }

  std::size_t lightest_without(ExpertId e) const {
    std::size_t lightest = experts_of_device_.size();
    for (std::size_t d = 0; d < experts_of_device_.size(); ++d)
      if (experts_of_device_[d].size() < slots_ && !holds_[at(d, e)] &&
          (lightest == experts_of_device_.size() || load_of_device_[d] < load_of_device_[lightest]))
        lightest = d;
    return lightest;
  }

  void place(std::size_t host, ExpertId e) {
    ++copies_[e.idx()];
    holds_[at(host, e)] = true;
    experts_of_device_[host].push_back(e);
    for (std::size_t d = 0; d < experts_of_device_.size(); ++d)
      if (holds_[at(d, e)]) add_up(d);
  }

  // Anew and in the order of the experts, so that no history of rounding decides a tie.
  void add_up(std::size_t d) {
    std::ranges::sort(experts_of_device_[d]);
    load_of_device_[d] = 0;
    for (const ExpertId e : experts_of_device_[d]) load_of_device_[d] += share_of(e);
  }

  // experts is sorted; what is in `slots` stays there, the rest takes the free slots in order.
  static std::vector<std::int32_t> kept_in_place(std::vector<std::int32_t> experts,
                                                 std::span<const std::int32_t> slots) {
    std::vector<std::int32_t> placed(slots.size(), kEmptySlot);
    for (std::size_t p = 0; p < slots.size(); ++p) {
      const auto stays = std::ranges::lower_bound(experts, slots[p]);
      if (stays == experts.end() || *stays != slots[p]) continue;
      placed[p] = *stays;
      experts.erase(stays);
    }
    for (std::size_t p = 0, next = 0; p < placed.size(); ++p)
      if (placed[p] == kEmptySlot) placed[p] = experts[next++];
    return placed;
  }

  std::vector<double> load_;  // [E]
  std::size_t slots_;
  std::vector<int> copies_;  // [E]
  std::vector<std::vector<ExpertId>> experts_of_device_;
  std::vector<bool> holds_;             // [D, E]
  std::vector<double> load_of_device_;  // [D]
};

// [E]
std::vector<double> load_of(const LayerPlan& layer, int num_experts,
                            std::span<const std::vector<std::int64_t>> loads, std::size_t m) {
  std::vector<double> load(static_cast<std::size_t>(num_experts), 0);
  if (!loads.empty()) {
    GRACE_CHECK(loads[m].size() == load.size(), "a load for each expert");
    std::ranges::copy(loads[m], load.begin());
    return load;
  }
  for (std::size_t d = 0; d < layer.predicted_load.size(); ++d) {
    const std::vector<ExpertId> experts = layer.experts_on(DeviceId(static_cast<int>(d)));
    for (const ExpertId e : experts)
      load[e.idx()] += layer.predicted_load[d] / static_cast<double>(experts.size());
  }
  return load;
}

}  // namespace

std::vector<std::string> violations(const SlotMap& map) {
  Findings found(kMaxLines);
  if (map.num_experts < 1 || map.num_experts > kMaxExperts)
    found.add("{} experts, outside [1, {}]", map.num_experts, kMaxExperts);
  if (map.num_devices < 1 || map.num_devices > kMaxDevices)
    found.add("{} devices, outside [1, {}]", map.num_devices, kMaxDevices);
  if (map.expert_of_slot.empty()) found.add("there is no layer");
  if (map.decoder_layers.size() != map.expert_of_slot.size())
    found.add("{} rows of slots, but {} decoder layers", map.expert_of_slot.size(),
              map.decoder_layers.size());
  for (std::size_t i = 0; i < map.decoder_layers.size(); ++i) {
    const int lowest = i == 0 ? 0 : map.decoder_layers[i - 1] + 1;
    if (map.decoder_layers[i] >= lowest && map.decoder_layers[i] <= kMaxDecoderLayer) continue;
    found.add("layer {}: decoder layer {} is outside [{}, {}]", i, map.decoder_layers[i], lowest,
              kMaxDecoderLayer);
    break;
  }
  if (!found.empty()) return found.take();
  if (map.num_slots() % map.num_devices != 0)
    found.add("{} slots do not divide among {} devices", map.num_slots(), map.num_devices);
  check_rows(map, found);
  return found.take();
}

bool has_empty_slots(const SlotMap& map) {
  return std::ranges::any_of(map.expert_of_slot, [](const std::vector<std::int32_t>& row) {
    return std::ranges::find(row, kEmptySlot) != row.end();
  });
}

std::int64_t second_copies(const SlotMap& map) {
  std::int64_t seconds = 0;
  std::vector<std::int64_t> last(static_cast<std::size_t>(map.num_experts), -1);  // (layer, device) with it
  for (std::size_t m = 0; m < map.expert_of_slot.size(); ++m)
    for (int d = 0; d < map.num_devices; ++d) {
      const auto here = static_cast<std::int64_t>(m) * map.num_devices + d;
      for (const std::int32_t e : map.slots_of(m, DeviceId(d)))
        if (e != kEmptySlot && std::exchange(last[static_cast<std::size_t>(e)], here) == here) ++seconds;
    }
  return seconds;
}

Result<EvenPlan> even_out(const Plan& plan, std::span<const std::vector<std::int64_t>> loads,
                          int slots_per_device, const SlotMap* before) {
  GRACE_CHECK(loads.empty() || loads.size() == plan.layers.size(), "loads of every layer");
  int fullest = 0;
  for (int d = 0; d < plan.num_devices(); ++d) fullest = std::max(fullest, plan.max_slots(DeviceId(d)));
  if (slots_per_device > kMaxExperts)
    return invalid_input(fmt::format("{} slots on every device, at most {}", slots_per_device, kMaxExperts));
  if (slots_per_device != 0 && slots_per_device < fullest)
    return invalid_input(
        fmt::format("{} slots on every device, the plan's fullest holds {}", slots_per_device, fullest));
  const int slots = slots_per_device == 0 ? fullest : slots_per_device;
  EvenPlan even;
  even.slots = {plan.num_experts, plan.num_devices(), plan.decoder_layers, {}};
  even.padding.slots_per_device = slots;
  const bool same_shape = before != nullptr && before->num_experts == plan.num_experts &&
                          before->num_devices == plan.num_devices() &&
                          before->decoder_layers == plan.decoder_layers &&
                          before->slots_per_device() == slots;
  for (std::size_t m = 0; m < plan.layers.size(); ++m) {
    Layer layer(plan.layers[m], load_of(plan.layers[m], plan.num_experts, loads, m),
                static_cast<std::size_t>(slots));
    even.padding.added += layer.add_copies();
    even.padding.empty += layer.repeat();
    even.slots.expert_of_slot.push_back(layer.in_order(same_shape ? before : nullptr, m));
  }
  even.padding.added += even.padding.empty;
  const auto all = static_cast<double>(slots) * plan.num_devices() * static_cast<double>(plan.layers.size());
  even.padding.memory_factor = all / (all - static_cast<double>(even.padding.added));
  return even;
}

Plan plan_of(const SlotMap& map, std::string model, std::vector<int> devices_per_node, int* dropped) {
  GRACE_CHECK(std::accumulate(devices_per_node.begin(), devices_per_node.end(), 0) == map.num_devices,
              "the nodes' devices are the map's");
  Plan plan;
  plan.model = std::move(model);
  plan.num_experts = map.num_experts;
  plan.decoder_layers = map.decoder_layers;
  plan.devices_per_node = std::move(devices_per_node);
  plan.strategy = "imported";
  const auto num_devices = static_cast<std::size_t>(map.num_devices);
  for (std::size_t m = 0; m < map.expert_of_slot.size(); ++m) {
    LayerPlan& layer = plan.layers.emplace_back();
    layer.primaries_of_device.resize(num_devices);
    layer.replicas_of_device.resize(num_devices);
    std::vector<bool> has_primary(static_cast<std::size_t>(map.num_experts), false);
    for (std::size_t d = 0; d < num_devices; ++d) {
      const std::span<const std::int32_t> slots = map.slots_of(m, DeviceId(static_cast<int>(d)));
      std::vector<std::int32_t> experts(slots.begin(), slots.end());
      std::ranges::sort(experts);
      experts.erase(std::unique(experts.begin(), experts.end()), experts.end());
      for (const std::int32_t e : experts) {
        if (e == kEmptySlot) continue;
        const auto i = static_cast<std::size_t>(e);
        (has_primary[i] ? layer.replicas_of_device : layer.primaries_of_device)[d].push_back(ExpertId(e));
        has_primary[i] = true;
      }
    }
  }
  if (dropped != nullptr) *dropped = static_cast<int>(second_copies(map));
  const std::vector<std::vector<std::int64_t>> ones(
      plan.layers.size(), std::vector<std::int64_t>(static_cast<std::size_t>(map.num_experts), 1));
  predict_equal_shares(ones, plan);
  return plan;
}

void predict_equal_shares(std::span<const std::vector<std::int64_t>> loads, Plan& plan) {
  GRACE_CHECK(loads.size() == plan.layers.size(), "loads of every layer");
  for (std::size_t m = 0; m < plan.layers.size(); ++m) {
    LayerPlan& layer = plan.layers[m];
    layer.predicted_load.assign(layer.primaries_of_device.size(), 0);
    const std::vector<std::vector<DeviceId>> hosts = layer.hosts_of_expert(plan.num_experts);
    for (std::size_t e = 0; e < hosts.size(); ++e)
      for (const DeviceId d : hosts[e])
        layer.predicted_load[d.idx()] +=
            static_cast<double>(loads[m][e]) / static_cast<double>(hosts[e].size());
  }
}

}  // namespace grace
