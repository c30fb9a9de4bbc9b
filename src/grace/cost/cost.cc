#include "grace/cost/cost.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "grace/base/check.h"

namespace grace {

namespace {

constexpr std::pair<Dispatch, std::string_view> kDispatches[] = {{Dispatch::kFlat, "flat"},
                                                                 {Dispatch::kPerDevice, "per_device"},
                                                                 {Dispatch::kTwoStage, "two_stage"},
                                                                 {Dispatch::kPadded, "padded"},
                                                                 {Dispatch::kAllGather, "allgather"}};

}  // namespace

Result<Dispatch> parse_dispatch(std::string_view name) {
  std::string names;
  for (const auto& [dispatch, known] : kDispatches) {
    if (known == name) return dispatch;
    names += (names.empty() ? "" : ", ") + std::string(known);
  }
  return invalid_input("dispatch `" + std::string(name) + "` is none of " + names);
}

std::string_view name_of(Dispatch dispatch) {
  for (const auto& [known, name] : kDispatches)
    if (known == dispatch) return name;
  return "unknown";
}

Result<Combine> parse_combine(std::string_view name) {
  for (const Combine combine : {Combine::kExact, Combine::kReduced})
    if (name_of(combine) == name) return combine;
  return invalid_input("combine `" + std::string(name) + "` is neither exact nor reduced");
}

std::string_view name_of(Combine combine) { return combine == Combine::kExact ? "exact" : "reduced"; }

Result<Wire> parse_wire(std::string_view name) {
  for (const Wire wire : {Wire::kF32, Wire::kBf16})
    if (name_of(wire) == name) return wire;
  return invalid_input("wire `" + std::string(name) + "` is neither f32 nor bf16");
}

std::string_view name_of(Wire wire) { return wire == Wire::kF32 ? "f32" : "bf16"; }

HopCounter::HopCounter(const Cluster& cluster, Dispatch dispatch) : cluster_(cluster), dispatch_(dispatch) {
  const auto devices = static_cast<std::size_t>(cluster.num_devices());
  counts_ = {std::vector<std::int64_t>(devices * devices), std::vector<std::int64_t>(devices * devices),
             std::vector<std::int64_t>(devices)};
  of_device_.assign(devices, 0);
}

void HopCounter::clear() {
  for (auto* counts : {&counts_.vectors, &counts_.assignments, &counts_.load}) std::ranges::fill(*counts, 0);
}

HopCounts HopCounter::counts() const {
  HopCounts counts = counts_;
  if (dispatch_ != Dispatch::kPadded) return counts;
  const std::size_t devices = of_device_.size();
  const std::int64_t longest = std::ranges::max(counts_.vectors);
  for (std::size_t from = 0; from < devices; ++from)
    for (std::size_t to = 0; to < devices; ++to)
      if (from != to) counts.vectors[from * devices + to] = counts.assignments[from * devices + to] = longest;
  return counts;
}

void HopCounter::add(DeviceId source, std::span<const std::int32_t> device_of_choice, int experts_per_token) {
  GRACE_CHECK(experts_per_token > 0, "tokens have choices");
  GRACE_CHECK(source.value >= 0 && source.idx() < of_device_.size(), "the source is a device of the cluster");
  const auto top_k = static_cast<std::size_t>(experts_per_token);
  GRACE_CHECK(device_of_choice.size() % top_k == 0, "device_of_choice is [T, K]");
  for (std::size_t i = 0; i < device_of_choice.size(); i += top_k)
    add_token(source, device_of_choice.subspan(i, top_k));
}

void HopCounter::add_token(DeviceId source, std::span<const std::int32_t> devices) {
  used_.clear();
  for (const std::int32_t device : devices) {
    if (device == kNoDevice.value) continue;
    const auto d = static_cast<std::size_t>(device);
    GRACE_CHECK(device >= 0 && d < of_device_.size(), "a token goes to a device of the cluster");
    ++counts_.load[d];
    if (of_device_[d]++ == 0) used_.push_back(device);
  }
  std::ranges::sort(used_);
  if (dispatch_ == Dispatch::kAllGather)
    for (std::size_t d = 0; d < of_device_.size(); ++d) carry(source.idx(), d, 1, 0);
  NodeId entered = cluster_.node_of(source);
  for (const std::int32_t device : used_) {
    const DeviceId to(device);
    const std::int64_t assignments = std::exchange(of_device_[to.idx()], 0);
    if (dispatch_ != Dispatch::kTwoStage) {
      const bool alone = dispatch_ == Dispatch::kFlat || dispatch_ == Dispatch::kPadded;
      const std::int64_t vectors = alone ? assignments : dispatch_ == Dispatch::kPerDevice ? 1 : 0;
      carry(source.idx(), to.idx(), vectors, assignments);
      continue;
    }
    const NodeId node = cluster_.node_of(to);
    const DeviceId entry = cluster_.entry_of(node, source);
    if (node != cluster_.node_of(source)) {
      carry(source.idx(), entry.idx(), node != entered ? 1 : 0, assignments);
      entered = node;  // a node's devices are consecutive
    }
    carry(entry.idx(), to.idx(), 1, assignments);
  }
}

void HopCounter::carry(std::size_t from, std::size_t to, std::int64_t vectors, std::int64_t assignments) {
  if (from == to) return;
  counts_.vectors[from * of_device_.size() + to] += vectors;
  counts_.assignments[from * of_device_.size() + to] += assignments;
}

LevelBytes& LevelBytes::operator+=(const LevelBytes& other) {
  intra_node_payload += other.intra_node_payload;
  cross_node_payload += other.cross_node_payload;
  intra_node_header += other.intra_node_header;
  cross_node_header += other.cross_node_header;
  return *this;
}

LayerTraffic traffic_of(const HopCounts& counts, const Cluster& cluster, Combine combine,
                        std::int64_t bytes_per_vector) {
  const auto devices = static_cast<std::size_t>(cluster.num_devices());
  GRACE_CHECK(counts.vectors.size() == devices * devices, "counts are of the cluster");
  const bool exact = combine == Combine::kExact;
  const std::int64_t assignment_header = kBytesPerAssignmentHeader + (exact ? 0 : kBytesPerGateWeight);
  LayerTraffic traffic;
  traffic.load = counts.load;
  for (std::size_t from = 0; from < devices; ++from) {
    for (std::size_t to = 0; to < devices; ++to) {
      const std::int64_t assignments = counts.assignments[from * devices + to];
      const std::int64_t vectors = counts.vectors[from * devices + to];
      const bool same_node = cluster.node_of(DeviceId(static_cast<std::int32_t>(from))) ==
                             cluster.node_of(DeviceId(static_cast<std::int32_t>(to)));
      const std::int64_t header = vectors * kBytesPerVectorHeader + assignments * assignment_header;
      (same_node ? traffic.dispatch.intra_node_payload : traffic.dispatch.cross_node_payload) +=
          vectors * bytes_per_vector;
      (same_node ? traffic.dispatch.intra_node_header : traffic.dispatch.cross_node_header) += header;
      (same_node ? traffic.combine.intra_node_payload : traffic.combine.cross_node_payload) +=
          (exact ? assignments : vectors) * bytes_per_vector;
    }
  }
  return traffic;
}

namespace {

double mean_of(std::span<const std::int64_t> load) {
  const std::int64_t sum = std::accumulate(load.begin(), load.end(), std::int64_t{0});
  return load.empty() ? 0.0 : static_cast<double>(sum) / static_cast<double>(load.size());
}

}  // namespace

double max_over_mean(std::span<const std::int64_t> load) {
  const double mean = mean_of(load);
  return mean > 0 ? static_cast<double>(*std::ranges::max_element(load)) / mean : 1.0;
}

double standard_deviation(std::span<const std::int64_t> load) {
  if (load.empty()) return 0;
  const double mean = mean_of(load);
  double squares = 0;
  for (const std::int64_t l : load)
    squares += (static_cast<double>(l) - mean) * (static_cast<double>(l) - mean);
  return std::sqrt(squares / static_cast<double>(load.size()));
}

}  // namespace grace
