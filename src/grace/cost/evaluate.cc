#include "grace/cost/evaluate.h"

#include <algorithm>
#include <numeric>

#include "grace/base/check.h"

namespace grace {

namespace {

LinkVectors no_vectors(std::size_t nodes, std::size_t devices) {
  return {std::vector<std::int64_t>(nodes), std::vector<std::int64_t>(nodes),
          std::vector<std::int64_t>(devices), std::vector<std::int64_t>(devices)};
}

void add_times(std::int64_t times, const LinkVectors& from, LinkVectors& to) {
  for (auto list :
       {&LinkVectors::node_out, &LinkVectors::node_in, &LinkVectors::device_out, &LinkVectors::device_in})
    for (std::size_t i = 0; i < (from.*list).size(); ++i) (to.*list)[i] += times * (from.*list)[i];
}

void clear_vectors(LinkVectors& links) {
  for (auto* counts : {&links.node_out, &links.node_in, &links.device_out, &links.device_in})
    std::ranges::fill(*counts, 0);
}

}  // namespace

BatchCounter::BatchCounter(const Cluster& cluster, int num_experts, Dispatch dispatch, Combine combine)
    : dispatch_(dispatch), combine_(combine), num_experts_(static_cast<std::size_t>(num_experts)) {
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
  static_cast<LinkVectors&>(counts_) = no_vectors(nodes, devices);
  if (combine == Combine::kExact) counts_.home = no_vectors(nodes, devices);
  counts_.load.assign(devices, 0);
  counts_.copy_load.assign(devices * num_experts_, 0);
  if (dispatch != Dispatch::kPadded) return;
  messages_.assign(devices * devices, 0);
  one_each_ = no_vectors(nodes, devices);
  for (std::size_t from = 0; from < devices; ++from)
    for (std::size_t to = 0; to < devices; ++to) count_vector(from, to, one_each_);
}

void BatchCounter::clear() {
  counts_.tokens = counts_.assignments = counts_.devices = counts_.entered_nodes = counts_.forwards = 0;
  clear_vectors(counts_);
  clear_vectors(counts_.home);
  std::ranges::fill(counts_.load, 0);
  std::ranges::fill(counts_.copy_load, 0);
  std::ranges::fill(messages_, 0);
  longest_ = 0;
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
  if (dispatch_ == Dispatch::kAllGather) count_everywhere(source);
  for (std::size_t k = 0; k < choices.size(); ++k) {
    if (devices[k] == kNoDevice.value) continue;
    any = true;
    const auto device = static_cast<std::size_t>(devices[k]);
    GRACE_CHECK(devices[k] >= 0 && device < node_of_.size() && choices[k] < num_experts_,
                "an assignment is to an expert of the layer on a device of the cluster");
    ++counts_.assignments;
    ++counts_.load[device];
    ++counts_.copy_load[device * num_experts_ + choices[k]];
    const auto node = static_cast<std::size_t>(node_of_[device]);
    const auto by = static_cast<std::size_t>(entry[node]);
    if (dispatch_ == Dispatch::kFlat) count_vector(source, device, counts_);
    if (dispatch_ == Dispatch::kPadded) pad(source, device);
    if (combine_ == Combine::kExact) count_home(source, by, device);
    if (last_device_[device] == token_) continue;
    last_device_[device] = token_;
    ++counts_.devices;
    if (dispatch_ == Dispatch::kPerDevice) count_vector(source, device, counts_);
    const bool forwarded = by != device;
    counts_.forwards += forwarded ? 1 : 0;
    const bool entered = node_of_[source] != node_of_[device] && last_node_[node] != token_;
    counts_.entered_nodes += entered ? 1 : 0;
    last_node_[node] = token_;
    if (dispatch_ != Dispatch::kTwoStage) continue;
    count_vector(by, device, counts_);
    if (entered) count_vector(source, by, counts_);
  }
  counts_.tokens += any ? 1 : 0;
}

void BatchCounter::count_vector(std::size_t from, std::size_t to, LinkVectors& links) const {
  if (from == to) return;
  const auto sender = static_cast<std::size_t>(node_of_[from]);
  const auto receiver = static_cast<std::size_t>(node_of_[to]);
  ++(sender == receiver ? links.device_out[from] : links.node_out[sender]);
  ++(sender == receiver ? links.device_in[to] : links.node_in[receiver]);
}

// An assignment's result; a padded message's are as many as its vectors.
void BatchCounter::count_home(std::size_t source, std::size_t entry, std::size_t device) {
  if (dispatch_ == Dispatch::kPadded) return;
  const std::size_t by = dispatch_ == Dispatch::kTwoStage ? entry : source;
  count_vector(source, by, counts_.home);
  count_vector(by, device, counts_.home);
}

void BatchCounter::count_everywhere(std::size_t source) {
  for (std::size_t device = 0; device < node_of_.size(); ++device) count_vector(source, device, counts_);
}

// Where a message is longer than all before, every other grows with it.
void BatchCounter::pad(std::size_t source, std::size_t device) {
  if (source == device) return;
  const std::int64_t length = ++messages_[source * node_of_.size() + device];
  if (length <= longest_) return;
  longest_ = length;
  add_times(1, one_each_, counts_);
  if (combine_ == Combine::kExact) add_times(1, one_each_, counts_.home);
}

LayerTime& LayerTime::operator+=(const LayerTime& other) {
  cross_node_s += other.cross_node_s;
  intra_node_s += other.intra_node_s;
  latency_s += other.latency_s;
  compute_s += other.compute_s;
  mean_compute_s += other.mean_compute_s;
  return *this;
}

namespace {

// Vectors of the busiest node and of the busiest device inside its node.
struct Busiest {
  std::int64_t cross_node = 0, intra_node = 0;
};
Busiest busiest(const LinkVectors& links) {
  Busiest most;
  for (std::size_t n = 0; n < links.node_in.size(); ++n)
    most.cross_node = std::max({most.cross_node, links.node_in[n], links.node_out[n]});
  for (const std::int64_t in : links.device_in) most.intra_node = std::max(most.intra_node, in);
  return most;
}

}  // namespace

LayerTime layer_time(const BatchCounts& counts, const Cluster& cluster, const LayerSizes& sizes,
                     std::span<double> device_compute_s) {
  GRACE_CHECK(sizes.known(), "seconds need the layer's sizes");
  const auto devices = counts.load.size();
  const Busiest there = busiest(counts);
  const Busiest back = counts.home.node_in.empty() ? there : busiest(counts.home);
  const auto seconds_of = [&](std::int64_t vectors, const Link& link) {
    return static_cast<double>(vectors) * sizes.vector_bytes() / link.bytes_per_s;
  };
  LayerTime time;
  time.cross_node_s = seconds_of(there.cross_node + back.cross_node, cluster.between_nodes);
  time.intra_node_s = seconds_of(there.intra_node + back.intra_node, cluster.between_devices);
  for (const Busiest& exchange : {there, back})
    time.latency_s += (exchange.cross_node > 0 ? cluster.between_nodes.latency_s : 0) +
                      (exchange.intra_node > 0 ? cluster.between_devices.latency_s : 0);
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

std::int64_t cross_node_vectors(const LinkVectors& links) {
  return std::accumulate(links.node_out.begin(), links.node_out.end(), std::int64_t{0});
}
std::int64_t intra_node_vectors(const LinkVectors& links) {
  return std::accumulate(links.device_out.begin(), links.device_out.end(), std::int64_t{0});
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
