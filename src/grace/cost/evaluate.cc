#include "grace/cost/evaluate.h"

#include <algorithm>
#include <numeric>

#include "grace/base/check.h"

namespace grace {

BatchCounter::BatchCounter(const Cluster& cluster, int num_experts, Dispatch dispatch)
    : dispatch_(dispatch), num_experts_(static_cast<std::size_t>(num_experts)) {
  const auto devices = static_cast<std::size_t>(cluster.num_devices());
  const auto nodes = static_cast<std::size_t>(cluster.num_nodes());
  for (std::size_t d = 0; d < devices; ++d) {
    const DeviceId device(static_cast<std::int32_t>(d));
    node_of_.push_back(cluster.node_of(device).value);
    for (std::size_t n = 0; n < nodes; ++n) {
      const NodeId node(static_cast<std::int32_t>(n));
      entry_.push_back(cluster.entry_of(node, device).value);
    }
  }
  last_device_.assign(devices, 0);
  last_node_.assign(nodes, 0);
  counts_.node_out.assign(nodes, 0);
  counts_.node_in.assign(nodes, 0);
  counts_.device_out.assign(devices, 0);
  counts_.device_in.assign(devices, 0);
  counts_.load.assign(devices, 0);
  counts_.copy_load.assign(devices * num_experts_, 0);
}

void BatchCounter::clear() {
  counts_.tokens = counts_.assignments = counts_.devices = counts_.entered_nodes = counts_.forwards = 0;
  for (auto* counts :
       {&counts_.node_out, &counts_.node_in, &counts_.device_out, &counts_.device_in, &counts_.load})
    std::ranges::fill(*counts, 0);
  std::ranges::fill(counts_.copy_load, 0);
}

void BatchCounter::add(DeviceId source, std::span<const std::uint16_t> choices,
                       std::span<const std::int32_t> device_of_choice, int experts_per_token) {
  GRACE_CHECK(experts_per_token > 0 && choices.size() == device_of_choice.size(), "a device for each choice");
  const auto top_k = static_cast<std::size_t>(experts_per_token);
  GRACE_CHECK(choices.size() % top_k == 0, "choices are [T, K]");
  GRACE_CHECK(source.value >= 0 && source.idx() < node_of_.size(), "the source is a device of the cluster");
  for (std::size_t i = 0; i < choices.size(); i += top_k)
    add_token(source.idx(), choices.subspan(i, top_k), device_of_choice.subspan(i, top_k));
}

void BatchCounter::add_token(std::size_t source, std::span<const std::uint16_t> choices,
                             std::span<const std::int32_t> devices) {
  const std::int32_t* entry = &entry_[source * last_node_.size()];
  ++token_;
  bool any = false;
  for (std::size_t k = 0; k < choices.size(); ++k) {
    if (devices[k] == kNoDevice.value) continue;
    any = true;
    const auto device = static_cast<std::size_t>(devices[k]);
    GRACE_CHECK(devices[k] >= 0 && device < node_of_.size() && choices[k] < num_experts_,
                "an assignment is to an expert of the layer on a device of the cluster");
    ++counts_.assignments;
    ++counts_.load[device];
    ++counts_.copy_load[device * num_experts_ + choices[k]];
    if (dispatch_ == Dispatch::kFlat) count_vectors(source, device, 1);
    if (last_device_[device] == token_) continue;
    last_device_[device] = token_;
    ++counts_.devices;
    if (dispatch_ == Dispatch::kPerDevice) count_vectors(source, device, 1);
    const auto node = static_cast<std::size_t>(node_of_[device]);
    const bool forwarded = entry[node] != devices[k];
    counts_.forwards += forwarded ? 1 : 0;
    const bool entered = node_of_[source] != node_of_[device] && last_node_[node] != token_;
    counts_.entered_nodes += entered ? 1 : 0;
    last_node_[node] = token_;
    if (dispatch_ != Dispatch::kTwoStage) continue;
    if (forwarded) count_vectors(static_cast<std::size_t>(entry[node]), device, 1);
    if (entered) {
      ++counts_.node_out[static_cast<std::size_t>(node_of_[source])];
      ++counts_.node_in[node];
    }
  }
  counts_.tokens += any ? 1 : 0;
}

void BatchCounter::count_vectors(std::size_t source, std::size_t device, std::int64_t vectors) {
  if (source == device) return;
  const auto from = static_cast<std::size_t>(node_of_[source]);
  const auto to = static_cast<std::size_t>(node_of_[device]);
  (from == to ? counts_.device_out[source] : counts_.node_out[from]) += vectors;
  (from == to ? counts_.device_in[device] : counts_.node_in[to]) += vectors;
}

LayerTime& LayerTime::operator+=(const LayerTime& other) {
  cross_node_s += other.cross_node_s;
  intra_node_s += other.intra_node_s;
  latency_s += other.latency_s;
  compute_s += other.compute_s;
  mean_compute_s += other.mean_compute_s;
  return *this;
}

LayerTime layer_time(const BatchCounts& counts, const Cluster& cluster, const LayerSizes& sizes,
                     std::span<double> device_compute_s) {
  GRACE_CHECK(sizes.known(), "seconds need the layer's sizes");
  const auto devices = counts.load.size();
  std::int64_t most_cross = 0;
  for (std::size_t n = 0; n < counts.node_in.size(); ++n)
    most_cross = std::max({most_cross, counts.node_in[n], counts.node_out[n]});
  const std::int64_t most_intra = devices == 0 ? 0 : *std::ranges::max_element(counts.device_in);
  LayerTime time;
  time.cross_node_s =
      2 * static_cast<double>(most_cross) * sizes.vector_bytes() / cluster.between_nodes.bytes_per_s;
  time.intra_node_s =
      2 * static_cast<double>(most_intra) * sizes.vector_bytes() / cluster.between_devices.bytes_per_s;
  time.latency_s = (most_cross > 0 ? 2 * cluster.between_nodes.latency_s : 0) +
                   (most_intra > 0 ? 2 * cluster.between_devices.latency_s : 0);
  const double stream_s = sizes.expert_bytes() / cluster.memory_bytes_per_s;
  const double assignment_s = sizes.flops_per_assignment() / cluster.flops_per_s;
  const std::size_t num_experts = devices == 0 ? 0 : counts.copy_load.size() / devices;
  std::size_t d = 0;
  for (const std::vector<Device>& of_node : cluster.devices_of_node) {
    for (const Device& device : of_node) {
      double seconds = 0;
      for (std::size_t e = 0; e < num_experts; ++e) {
        const std::int32_t n = counts.copy_load[d * num_experts + e];
        if (n > 0) seconds += std::max(stream_s, assignment_s * n);
      }
      seconds /= device.speed;
      time.compute_s = std::max(time.compute_s, seconds);
      time.mean_compute_s += seconds / static_cast<double>(devices);
      if (!device_compute_s.empty()) device_compute_s[d] = seconds;
      ++d;
    }
  }
  return time;
}

std::int64_t cross_node_vectors(const BatchCounts& counts) {
  return std::accumulate(counts.node_out.begin(), counts.node_out.end(), std::int64_t{0});
}
std::int64_t intra_node_vectors(const BatchCounts& counts) {
  return std::accumulate(counts.device_out.begin(), counts.device_out.end(), std::int64_t{0});
}

void FigureSum::add(const BatchCounts& counts, const Cluster& cluster, const LayerSizes& sizes) {
  if (counts.assignments == 0) return;
  ++batches_;
  tokens_ += counts.tokens;
  entered_nodes_ += counts.entered_nodes;
  forwards_ += counts.forwards;
  devices_ += counts.devices;
  sum_.load_max_over_mean += max_over_mean(counts.load);
  sum_.load_std += standard_deviation(counts.load) * static_cast<double>(counts.load.size()) /
                   static_cast<double>(counts.assignments);
  sum_.cross_node_vectors += static_cast<double>(cross_node_vectors(counts));
  sum_.intra_node_vectors += static_cast<double>(intra_node_vectors(counts));
  if (sizes.known()) sum_.time += layer_time(counts, cluster, sizes);
}

namespace {

// Every figure of `from`, times share, on top of `to`.
void add_share(const Figures& from, double share, Figures& to) {
  to.remote_nodes_per_token += from.remote_nodes_per_token * share;
  to.forwards_per_token += from.forwards_per_token * share;
  to.devices_per_token += from.devices_per_token * share;
  to.load_max_over_mean += from.load_max_over_mean * share;
  to.load_std += from.load_std * share;
  to.cross_node_vectors += from.cross_node_vectors * share;
  to.intra_node_vectors += from.intra_node_vectors * share;
  to.time += {from.time.cross_node_s * share, from.time.intra_node_s * share, from.time.latency_s * share,
              from.time.compute_s * share, from.time.mean_compute_s * share};
}

}  // namespace

Figures FigureSum::mean() const {
  if (batches_ == 0) return {};
  Figures mean;
  mean.load_max_over_mean = 0;
  Figures sum = sum_;
  sum.load_max_over_mean -= 1;  // what a Figures begins with
  add_share(sum, 1 / static_cast<double>(batches_), mean);
  const auto tokens = static_cast<double>(tokens_);
  mean.remote_nodes_per_token = static_cast<double>(entered_nodes_) / tokens;
  mean.forwards_per_token = static_cast<double>(forwards_) / tokens;
  mean.devices_per_token = static_cast<double>(devices_) / tokens;
  return mean;
}

Figures mean_of(std::span<const Figures> layers) {
  Figures mean;
  if (layers.empty()) return mean;
  mean.load_max_over_mean = 0;
  for (const Figures& layer : layers) add_share(layer, 1 / static_cast<double>(layers.size()), mean);
  return mean;
}

double value_of(const Figures& figures, Aim aim) {
  switch (aim) {
    case Aim::kLayerTime:
      return figures.time.total_s();
    case Aim::kJudgeSlow:
      return figures.judge(kSlowYardstick);
    case Aim::kJudgeFast:
      break;
  }
  return figures.judge(kFastYardstick);
}

}  // namespace grace
