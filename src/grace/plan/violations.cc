// What makes a plan sound: the one oracle of tests, readers and `grace check`.
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "grace/base/findings.h"
#include "grace/base/limits.h"
#include "grace/files/json_file.h"
#include "grace/plan/plan.h"

namespace grace {
namespace {

constexpr std::size_t kMaxLines = 100;  // a plan with more faults is another thing altogether

void check_text(const std::string& text, std::string_view name, Findings& found) {
  if (!is_utf8(text)) found.add("{} is not UTF-8", name);
}

void check_shape(const Plan& plan, Findings& found) {
  if (plan.num_experts < 1 || plan.num_experts > kMaxExperts)
    found.add("num_experts {} is outside [1, {}]", plan.num_experts, kMaxExperts);
  if (plan.devices_per_node.empty()) found.add("there is no node");
  std::int64_t devices = 0;
  for (std::size_t node = 0; node < plan.devices_per_node.size(); ++node) {
    const int here = plan.devices_per_node[node];
    if (here < 1 || here > kMaxDevices)
      found.add("node {} has {} devices, must be 1 to {}", node, here, kMaxDevices);
    devices += here;
  }
  if (devices > kMaxDevices) found.add("{} devices, at most {}", devices, kMaxDevices);
  if (plan.layers.empty()) found.add("there is no layer");
  if (plan.layers.size() != plan.decoder_layers.size())
    found.add("{} layers, but {} decoder layers", plan.layers.size(), plan.decoder_layers.size());
  for (std::size_t i = 0; i < plan.decoder_layers.size(); ++i) {
    const int lowest = i == 0 ? 0 : plan.decoder_layers[i - 1] + 1;
    if (plan.decoder_layers[i] < lowest || plan.decoder_layers[i] > kMaxDecoderLayer) {
      found.add("layer {}: decoder layer {} is outside [{}, {}]", i, plan.decoder_layers[i], lowest,
                kMaxDecoderLayer);
      return;
    }
  }
}

void check_words(const Plan& plan, Findings& found) {
  check_text(plan.model, "model", found);
  check_text(plan.strategy, "strategy", found);
  check_text(plan.routing, "routing", found);
  if (plan.routing.empty()) found.add("routing is empty");
  for (const auto& [key, value] : plan.provenance) {
    check_text(key, "a key of provenance", found);
    check_text(value, "provenance of " + shown(Json(key)), found);
  }
  for (const auto& [key, value] : plan.figures) {
    check_text(key, "a name of figures", found);
    if (!std::isfinite(value)) found.add("figure {} is {}, must be finite", shown(Json(key)), value);
  }
}

// What one layer holds, counted per expert.
class LayerCheck {
 public:
  LayerCheck(std::size_t ordinal, const LayerPlan& layer, int num_experts, Findings& found)
      : ordinal_(ordinal), layer_(layer), num_experts_(num_experts), found_(found) {}

  void run(std::size_t num_devices) {
    if (!has_lists(layer_.primaries_of_device.size(), num_devices, "primaries") ||
        !has_lists(layer_.replicas_of_device.size(), num_devices, "replicas") ||
        !has_lists(layer_.predicted_load.size(), num_devices, "predicted loads"))
      return;
    check_cover(num_devices);
    check_partner_lists();
    const auto size = static_cast<std::size_t>(num_experts_);
    primary_device_.assign(size, -1);
    last_device_.assign(size, -1);
    for (std::size_t device = 0; device < num_devices && !found_.full(); ++device) {
      visit(device, layer_.primaries_of_device[device], /*primary=*/true);
      visit(device, layer_.replicas_of_device[device], /*primary=*/false);
      const double load = layer_.predicted_load[device];
      if (!std::isfinite(load) || load < 0)
        found_.add("layer {}: device {} has predicted load {}, must be finite and not negative", ordinal_,
                   device, load);
    }
    for (int expert = 0; expert < num_experts_ && !found_.full(); ++expert) {
      if (last_device_[static_cast<std::size_t>(expert)] < 0)
        found_.add("layer {}: expert {} has no copy", ordinal_, expert);
      else if (primary_device_[static_cast<std::size_t>(expert)] < 0)
        found_.add("layer {}: expert {} has replicas but no primary copy", ordinal_, expert);
    }
  }

 private:
  bool has_lists(std::size_t has, std::size_t num_devices, std::string_view what) {
    if (has == num_devices) return true;
    found_.add("layer {}: {} of {} devices, the plan has {}", ordinal_, what, has, num_devices);
    return false;
  }

  void check_cover(std::size_t num_devices) {
    const CoverCosts& cover = layer_.cover;
    if (!cover.price.empty()) has_lists(cover.price.size(), num_devices, "prices");
    const auto check = [&](double cost, std::string_view name) {
      if (!std::isfinite(cost) || cost < 0)
        found_.add("layer {}: {} {} must be finite and not negative", ordinal_, name, cost);
    };
    check(cover.node, "cover cost of a node");
    check(cover.device, "cover cost of a device");
    for (const double price : cover.price) check(price, "price");
  }

  void check_partner_lists() {
    const auto& lists = layer_.partners_of_expert;
    if (lists.empty()) return;
    if (std::cmp_not_equal(lists.size(), num_experts_)) {
      found_.add("layer {}: partners of {} experts, the plan has {}", ordinal_, lists.size(), num_experts_);
      return;
    }
    std::vector<std::int32_t> seen(lists.size(), -1);  // the last expert that has it for a partner
    for (std::size_t expert = 0; expert < lists.size() && !found_.full(); ++expert) {
      const auto here = static_cast<std::int32_t>(expert);
      if (lists[expert].empty() && lists.size() > 1)
        found_.add("layer {}: expert {} has no partner", ordinal_, here);
      for (const ExpertId partner : lists[expert]) {
        if (partner.value < 0 || partner.value >= num_experts_)
          found_.add("layer {}: expert {} has partner {}, which is outside [0, {})", ordinal_, here,
                     partner.value, num_experts_);
        else if (partner.value == here)
          found_.add("layer {}: expert {} is its own partner", ordinal_, here);
        else if (std::exchange(seen[partner.idx()], here) == here)
          found_.add("layer {}: expert {} has partner {} twice", ordinal_, here, partner.value);
      }
    }
  }

  void visit(std::size_t device, const std::vector<ExpertId>& experts, bool primary) {
    const auto here = static_cast<std::int32_t>(device);
    ExpertId previous;
    for (const ExpertId expert : experts) {
      if (expert.value < 0 || expert.value >= num_experts_) {
        found_.add("layer {}: device {} holds expert {}, which is outside [0, {})", ordinal_, device,
                   expert.value, num_experts_);
        continue;
      }
      if (last_device_[expert.idx()] == here) {
        found_.add("layer {}: device {} holds expert {} twice", ordinal_, device, expert.value);
      } else {
        if (expert < previous)
          found_.add("layer {}: device {} lists expert {} after {}, must ascend", ordinal_, device,
                     expert.value, previous.value);
        if (primary && primary_device_[expert.idx()] >= 0)
          found_.add("layer {}: expert {} has primary copies on devices {} and {}", ordinal_, expert.value,
                     primary_device_[expert.idx()], device);
        if (primary) primary_device_[expert.idx()] = here;
        last_device_[expert.idx()] = here;
      }
      previous = expert;
    }
  }

  std::size_t ordinal_;
  const LayerPlan& layer_;
  int num_experts_;
  Findings& found_;
  std::vector<std::int32_t> primary_device_;  // [E], -1: none seen yet
  std::vector<std::int32_t> last_device_;     // [E], the last device seen with a copy, -1: none yet
};

void check_plan(const Plan& plan, Findings& found) {
  check_shape(plan, found);
  check_words(plan, found);
  // Layers are judged against the shape, so a wrong shape would only repeat itself there.
  if (!found.empty()) return;
  const auto num_devices = static_cast<std::size_t>(plan.num_devices());
  for (std::size_t i = 0; i < plan.layers.size() && !found.full(); ++i)
    LayerCheck(i, plan.layers[i], plan.num_experts, found).run(num_devices);
}

void check_slots(const Plan& plan, const Cluster& cluster, Findings& found) {
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    for (int device = 0; device < plan.num_devices(); ++device) {
      const DeviceId id(device);
      const auto slots = static_cast<std::size_t>(cluster.device(id).slots);
      const std::size_t copies = plan.layers[i].primaries_of_device[id.idx()].size() +
                                 plan.layers[i].replicas_of_device[id.idx()].size();
      if (slots > 0 && copies > slots)
        found.add("layer {}: device {} holds {} copies, has {} slots", i, device, copies, slots);
    }
  }
}

}  // namespace

std::vector<std::string> violations(const Plan& plan) {
  Findings found(kMaxLines);
  check_plan(plan, found);
  return found.take();
}

std::vector<std::string> violations(const Plan& plan, const Cluster& cluster) {
  Findings found(kMaxLines);
  check_plan(plan, found);
  if (!found.empty()) return found.take();
  std::vector<int> devices_per_node;
  for (int node = 0; node < cluster.num_nodes(); ++node)
    devices_per_node.push_back(cluster.devices_in(NodeId(node)));
  if (devices_per_node != plan.devices_per_node) {
    found.add("the plan is for nodes of {} devices, the cluster has nodes of {}",
              fmt::join(plan.devices_per_node, "+"), fmt::join(devices_per_node, "+"));
    return found.take();
  }
  check_slots(plan, cluster, found);
  return found.take();
}

}  // namespace grace
