#include "grace/replication/eplb.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

#include "grace/base/check.h"

namespace grace {
namespace {

// Where items are packed: at most `room` of them, their weight over `width` places.
struct Pack {
  int room = 0;
  double width = 1;
};

// The items of each pack in the order in which they came, heaviest first. REQUIRES: the rooms add up to the
// number of items.
std::vector<std::vector<std::size_t>> pack_heaviest_first(std::span<const double> weight,
                                                          std::span<const Pack> packs) {
  std::vector<std::vector<std::size_t>> items_of(packs.size());
  if (std::ranges::all_of(packs, [](const Pack& pack) { return pack.room == 1; })) {
    for (std::size_t i = 0; i < packs.size(); ++i) items_of[i] = {i};
    return items_of;
  }
  std::vector<std::size_t> order(weight.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return weight[a] > weight[b]; });
  std::vector<double> load(packs.size(), 0);
  for (const std::size_t item : order) {
    std::size_t lightest = packs.size();
    for (std::size_t p = 0; p < packs.size(); ++p) {
      if (items_of[p].size() >= static_cast<std::size_t>(packs[p].room)) continue;
      // load / width, multiplied out so that equal widths compare the loads themselves.
      if (lightest == packs.size() || load[p] * packs[lightest].width < load[lightest] * packs[p].width)
        lightest = p;
    }
    GRACE_CHECK(lightest < packs.size(), "no pack has room");
    items_of[lightest].push_back(item);
    load[lightest] += weight[item];
  }
  return items_of;
}

// The position of each copy's expert, originals first. REQUIRES: load is not empty, num_copies >= its size.
std::vector<std::size_t> replicate(std::span<const std::int64_t> load, int num_copies) {
  std::vector<std::size_t> expert_of_copy(load.size());
  std::iota(expert_of_copy.begin(), expert_of_copy.end(), std::size_t{0});
  std::vector<int> copies(load.size(), 1);
  using Candidate = std::pair<double, std::size_t>;  // load / copies, position
  const auto comes_later = [](const Candidate& a, const Candidate& b) {
    return a.first != b.first ? a.first < b.first : a.second > b.second;
  };
  std::priority_queue<Candidate, std::vector<Candidate>, decltype(comes_later)> heap(comes_later);
  for (std::size_t i = 0; i < load.size(); ++i) heap.push({static_cast<double>(load[i]), i});
  while (expert_of_copy.size() < static_cast<std::size_t>(num_copies)) {
    const std::size_t next = heap.top().second;
    heap.pop();
    expert_of_copy.push_back(next);
    heap.push({static_cast<double>(load[next]) / ++copies[next], next});
  }
  return expert_of_copy;
}

struct NodeShape {
  int groups = 0;          // of experts, that it takes
  std::vector<int> slots;  // of its devices
};

// Steps 2 and 3 in one node: appends the copies of each of its devices.
void fill_node(std::span<const std::int64_t> load, const std::vector<ExpertId>& experts,
               const NodeShape& node, std::vector<std::vector<ExpertId>>& experts_of_device) {
  const std::size_t first = experts_of_device.size();
  experts_of_device.resize(first + node.slots.size());
  if (experts.empty()) return;
  std::vector<std::int64_t> load_here;
  for (const ExpertId e : experts) load_here.push_back(load[e.idx()]);
  const int num_slots = std::accumulate(node.slots.begin(), node.slots.end(), 0);
  const std::vector<std::size_t> expert_of_copy = replicate(load_here, num_slots);
  std::vector<int> copies(experts.size(), 0);
  for (const std::size_t i : expert_of_copy) ++copies[i];
  std::vector<double> weight;
  for (const std::size_t i : expert_of_copy) weight.push_back(static_cast<double>(load_here[i]) / copies[i]);
  std::vector<Pack> packs;
  for (const int slots : node.slots) packs.push_back({slots, 1});
  const auto copies_of_device = pack_heaviest_first(weight, packs);
  for (std::size_t d = 0; d < copies_of_device.size(); ++d)
    for (const std::size_t copy : copies_of_device[d])
      experts_of_device[first + d].push_back(experts[expert_of_copy[copy]]);
}

// The three steps. [D][slots], second copies included.
std::vector<std::vector<ExpertId>> place_copies(std::span<const std::int64_t> load, int num_groups,
                                                const std::vector<NodeShape>& nodes) {
  const std::size_t group_size = load.size() / static_cast<std::size_t>(num_groups);
  std::vector<double> load_of_group(static_cast<std::size_t>(num_groups), 0);
  for (std::size_t e = 0; e < load.size(); ++e) load_of_group[e / group_size] += static_cast<double>(load[e]);
  std::vector<Pack> packs;
  for (const NodeShape& node : nodes) packs.push_back({node.groups, static_cast<double>(node.slots.size())});
  const auto groups_of_node = pack_heaviest_first(load_of_group, packs);

  std::vector<std::vector<ExpertId>> experts_of_device;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    std::vector<ExpertId> experts;
    for (const std::size_t group : groups_of_node[node])
      for (std::size_t i = 0; i < group_size; ++i)
        experts.push_back(ExpertId(static_cast<std::int32_t>(group * group_size + i)));
    fill_node(load, experts, nodes[node], experts_of_device);
  }
  return experts_of_device;
}

// Nodes take experts in proportion to their slots, rounded by the largest remainder.
void share_experts(int num_experts, std::vector<NodeShape>& nodes) {
  std::vector<std::int64_t> slots;
  for (const NodeShape& node : nodes)
    slots.push_back(std::accumulate(node.slots.begin(), node.slots.end(), std::int64_t{0}));
  const std::int64_t all = std::accumulate(slots.begin(), slots.end(), std::int64_t{0});
  std::vector<std::size_t> order(nodes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return num_experts * slots[a] % all > num_experts * slots[b] % all;
  });
  int left = num_experts;
  for (std::size_t n = 0; n < nodes.size(); ++n)
    left -= nodes[n].groups = static_cast<int>(num_experts * slots[n] / all);
  for (std::size_t rank = 0; left > 0; ++rank, --left) ++nodes[order[rank]].groups;
}

// Which device holds what while second copies move, with the loads that follow from it.
class Copies {
 public:
  Copies(std::span<const std::int64_t> load, std::vector<std::vector<ExpertId>>& experts_of_device)
      : load_(load),
        experts_of_device_(experts_of_device),
        count_at_(experts_of_device.size() * load.size(), 0),
        copies_(load.size(), 0),
        load_of_device_(experts_of_device.size(), 0) {
    for (std::size_t d = 0; d < experts_of_device.size(); ++d)
      for (const ExpertId e : experts_of_device[d]) {
        ++count_at(d, e);
        ++copies_[e.idx()];
      }
    for (std::size_t d = 0; d < experts_of_device.size(); ++d)
      for (const ExpertId e : experts_of_device[d]) load_of_device_[d] += share_of(e);
  }

  bool holds(std::size_t d, ExpertId e) const { return count_at_[d * load_.size() + e.idx()] > 0; }
  bool is_second(std::size_t d, ExpertId e) const { return count_at_[d * load_.size() + e.idx()] > 1; }
  std::span<const ExpertId> on(std::size_t d) const { return experts_of_device_[d]; }
  double share_of(ExpertId e) const { return static_cast<double>(load_[e.idx()]) / copies_[e.idx()]; }
  double load_of(std::size_t d) const { return load_of_device_[d]; }

  void add(std::size_t d, ExpertId e) {
    experts_of_device_[d].push_back(e);
    change_count(d, e, 1);
  }
  void remove(std::size_t d, std::size_t at) {
    std::vector<ExpertId>& experts = experts_of_device_[d];
    const ExpertId e = experts[at];
    experts.erase(experts.begin() + static_cast<std::ptrdiff_t>(at));
    change_count(d, e, -1);
  }
  void swap(std::size_t d, std::size_t at, std::size_t other, std::size_t other_at) {
    ExpertId& here = experts_of_device_[d][at];
    ExpertId& there = experts_of_device_[other][other_at];
    const double more = share_of(there) - share_of(here);
    load_of_device_[d] += more;
    load_of_device_[other] -= more;
    --count_at(d, here);
    ++count_at(d, there);
    --count_at(other, there);
    ++count_at(other, here);
    std::swap(here, there);
  }

  int num_seconds() const {
    int seconds = 0;
    for (const int count : count_at_) seconds += std::max(0, count - 1);
    return seconds;
  }

  // What device d lacks and has the largest load / copies; kNoExpert where it lacks nothing.
  ExpertId most_wanted_by(std::size_t d) const {
    ExpertId best = kNoExpert;
    for (std::int32_t id = 0; id < static_cast<std::int32_t>(load_.size()); ++id) {
      const ExpertId e(id);
      if (holds(d, e)) continue;
      const double more = best == kNoExpert ? 1 : share_of(e) - share_of(best);
      if (more > 0 || (more == 0 && copies_[e.idx()] < copies_[best.idx()])) best = e;
    }
    return best;
  }

 private:
  int& count_at(std::size_t d, ExpertId e) { return count_at_[d * load_.size() + e.idx()]; }
  void change_count(std::size_t d, ExpertId e, int change) {
    const double before = share_of(e);
    copies_[e.idx()] += change;
    const double after = share_of(e);
    for (std::size_t other = 0; other < load_of_device_.size(); ++other)
      load_of_device_[other] += count_at(other, e) * (after - before);
    count_at(d, e) += change;
    load_of_device_[d] += change * after;
  }

  std::span<const std::int64_t> load_;
  std::vector<std::vector<ExpertId>>& experts_of_device_;
  std::vector<int> count_at_;           // [D, E]
  std::vector<int> copies_;             // [E]
  std::vector<double> load_of_device_;  // [D]
};

// Tries to send the copy at position `at` of device d to another device of its domain.
bool change_places(Copies& copies, std::span<const int> domain_of_device, std::size_t d, std::size_t at) {
  const ExpertId second = copies.on(d)[at];
  const double share = copies.share_of(second);
  // The fuller of the two devices afterwards, the other device, minus the share that comes, its expert.
  using Change = std::tuple<double, std::size_t, double, ExpertId>;
  std::optional<Change> best;
  std::size_t best_at = 0;
  for (std::size_t other = 0; other < domain_of_device.size(); ++other) {
    if (domain_of_device[other] != domain_of_device[d] || copies.holds(other, second)) continue;
    const std::span<const ExpertId> there = copies.on(other);
    for (std::size_t i = 0; i < there.size(); ++i) {
      if (copies.holds(d, there[i])) continue;
      const double comes = copies.share_of(there[i]);
      const double more = comes - share;
      const Change change{std::max(copies.load_of(d) + more, copies.load_of(other) - more), other, -comes,
                          there[i]};
      if (best && *best <= change) continue;
      best = change;
      best_at = i;
    }
  }
  if (!best) return false;
  copies.swap(d, at, std::get<1>(*best), best_at);
  return true;
}

LayerPlan layer_of(std::span<const std::int64_t> load,
                   const std::vector<std::vector<ExpertId>>& experts_of_device) {
  std::vector<int> copies(load.size(), 0);
  for (const std::vector<ExpertId>& experts : experts_of_device)
    for (const ExpertId e : experts) ++copies[e.idx()];
  LayerPlan layer;
  std::vector<bool> has_primary(load.size(), false);
  for (std::vector<ExpertId> experts : experts_of_device) {
    std::ranges::sort(experts);
    layer.primaries_of_device.emplace_back();
    layer.replicas_of_device.emplace_back();
    layer.predicted_load.push_back(0);
    for (const ExpertId e : experts) {
      auto& list = has_primary[e.idx()] ? layer.replicas_of_device : layer.primaries_of_device;
      list.back().push_back(e);
      has_primary[e.idx()] = true;
      layer.predicted_load.back() += static_cast<double>(load[e.idx()]) / copies[e.idx()];
    }
  }
  return layer;
}

}  // namespace

std::vector<ExpertId> eplb_physical_to_logical(std::span<const std::int64_t> load, const EplbShape& shape) {
  const auto num_experts = static_cast<int>(load.size());
  const int num_devices = shape.num_devices;
  GRACE_CHECK(num_experts >= 1 && shape.num_physical >= num_experts, "every expert has a slot");
  GRACE_CHECK(num_devices >= 1 && shape.num_physical % num_devices == 0, "devices have equal slots");
  GRACE_CHECK(shape.num_nodes >= 1 && num_devices % shape.num_nodes == 0, "nodes have equal devices");
  GRACE_CHECK(shape.num_groups >= 1 && num_experts % shape.num_groups == 0, "groups have equal experts");
  GRACE_CHECK(std::ranges::min(load) >= 0, "a load is not negative");
  const bool hierarchical = shape.num_groups % shape.num_nodes == 0;
  const int num_groups = hierarchical ? shape.num_groups : 1;
  const int num_nodes = hierarchical ? shape.num_nodes : 1;
  const std::vector<int> slots(static_cast<std::size_t>(num_devices / num_nodes),
                               shape.num_physical / num_devices);
  const std::vector<NodeShape> nodes(static_cast<std::size_t>(num_nodes), {num_groups / num_nodes, slots});
  std::vector<ExpertId> physical_to_logical;
  for (const std::vector<ExpertId>& experts : place_copies(load, num_groups, nodes))
    physical_to_logical.insert(physical_to_logical.end(), experts.begin(), experts.end());
  return physical_to_logical;
}

int spread_second_copies(std::span<const std::int64_t> load, std::span<const int> slots,
                         std::span<const int> domain_of_device,
                         std::vector<std::vector<ExpertId>>& experts_of_device) {
  Copies copies(load, experts_of_device);
  const int seconds = copies.num_seconds();
  for (std::size_t d = 0; d < experts_of_device.size(); ++d) {
    for (std::size_t at = 0; at < experts_of_device[d].size();) {
      if (!copies.is_second(d, experts_of_device[d][at])) {
        ++at;
        continue;
      }
      if (!change_places(copies, domain_of_device, d, at)) copies.remove(d, at);
    }
  }
  for (std::size_t d = 0; d < experts_of_device.size(); ++d) {
    while (experts_of_device[d].size() < static_cast<std::size_t>(slots[d])) {
      const ExpertId wanted = copies.most_wanted_by(d);
      if (wanted == kNoExpert) break;
      copies.add(d, wanted);
    }
  }
  return seconds;
}

EplbLayer eplb_layer(std::span<const std::int64_t> load, const Cluster& cluster, std::span<const int> slots,
                     EplbLevels levels) {
  const auto num_experts = static_cast<int>(load.size());
  GRACE_CHECK(slots.size() == static_cast<std::size_t>(cluster.num_devices()), "slots for each device");
  const std::vector<std::int64_t> equal(load.size(), 1);
  const bool silent = std::ranges::all_of(load, [](std::int64_t l) { return l == 0; });
  const std::span<const std::int64_t> weight = silent ? std::span<const std::int64_t>(equal) : load;

  std::vector<NodeShape> nodes;
  std::vector<int> domain_of_device;
  for (int d = 0; d < cluster.num_devices(); ++d) {
    const int domain = levels == EplbLevels::kHierarchical ? cluster.node_of(DeviceId(d)).value : 0;
    nodes.resize(static_cast<std::size_t>(domain) + 1);
    nodes.back().slots.push_back(slots[DeviceId(d).idx()]);
    domain_of_device.push_back(domain);
  }
  share_experts(num_experts, nodes);
  std::vector<std::vector<ExpertId>> experts_of_device = place_copies(weight, num_experts, nodes);
  EplbLayer out;
  out.second_copies_moved = spread_second_copies(weight, slots, domain_of_device, experts_of_device);
  out.layer = layer_of(load, experts_of_device);
  return out;
}

}  // namespace grace
