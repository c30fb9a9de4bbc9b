#include "grace/runtime/step_choice.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "grace/base/check.h"

namespace grace {
namespace {

// Rows of each expert and part from which on reading its weights once more does not show.
constexpr double kRowsOfPart = 32;

struct Message {
  FanOut seen;
  double tokens = 0;  // of the step that begins
};

int largest_node(const Cluster& cluster) {
  int most = 0;
  for (int n = 0; n < cluster.num_nodes(); ++n) most = std::max(most, cluster.devices_in(NodeId(n)));
  return most;
}

double latency_s(const Cluster& cluster, Dispatch dispatch) {
  const bool inside = largest_node(cluster) > 1, between = cluster.num_nodes() > 1;
  const double in = inside ? cluster.between_devices.latency_s : 0;
  const double out = between ? cluster.between_nodes.latency_s : 0;
  return dispatch == Dispatch::kTwoStage ? in + out : std::max(in, out);
}

double experts_seconds(const ModelConfig& config, const Cluster& cluster, double tokens) {
  const double work = 6.0 * config.hidden_size * config.expert_ffn_size * config.experts_per_token;
  return tokens * work / cluster.flops_per_s;
}

}  // namespace

FanOut& FanOut::operator+=(const FanOut& other) {
  tokens += other.tokens;
  nodes += other.nodes;
  devices_out += other.devices_out;
  devices_in += other.devices_in;
  forwards += other.forwards;
  out += other.out;
  in += other.in;
  passed += other.passed;
  return *this;
}

FanOut fan_out_of(const Cluster& cluster, DeviceId source, std::span<const std::int32_t> device_of_choice,
                  int experts_per_token) {
  FanOut sum;
  const NodeId own = cluster.node_of(source);
  std::vector<std::int32_t> devices;
  const auto top = static_cast<std::size_t>(experts_per_token);
  for (std::size_t first = 0; first < device_of_choice.size(); first += top) {
    ++sum.tokens;
    devices.clear();
    for (const std::int32_t device : device_of_choice.subspan(first, top))
      if (device != kNoDevice.value && device != source.value) devices.push_back(device);
    std::ranges::sort(devices);
    int before = -1, node_before = -1;
    for (const std::int32_t value : devices) {
      const DeviceId device(value);
      const NodeId node = cluster.node_of(device);
      const bool away = node != own, enters = cluster.entry_of(node, source) == device;
      ++(away ? sum.out : sum.in);
      if (away && !enters) ++sum.passed;
      if (value == before) continue;
      before = value;
      ++(away ? sum.devices_out : sum.devices_in);
      if (!away || !enters) ++sum.forwards;
      if (away && node.value != node_before) {
        ++sum.nodes;
        node_before = node.value;
      }
    }
  }
  return sum;
}

FanOut even_fan_out(const Cluster& cluster, int experts_per_token) {
  FanOut sum;
  const double devices = cluster.num_devices(), choices = experts_per_token;
  const auto used = [&](double count) { return 1 - std::pow(1 - count / devices, choices); };
  for (int d = 0; d < cluster.num_devices(); ++d) {
    const NodeId own = cluster.node_of(DeviceId(d));
    ++sum.tokens;
    for (int n = 0; n < cluster.num_nodes(); ++n) {
      const double here = cluster.devices_in(NodeId(n));
      const bool away = NodeId(n) != own;
      const double others = here - 1;
      if (away) {
        sum.nodes += used(here);
        sum.devices_out += here * used(1);
        sum.out += choices * here / devices;
        sum.passed += choices * others / devices;
      } else {
        sum.devices_in += others * used(1);
        sum.in += choices * others / devices;
      }
      sum.forwards += others * used(1);
    }
  }
  return sum;
}

double exchange_seconds(const Cluster& cluster, const FanOut& fan_out, double tokens, Dispatch dispatch,
                        Combine combine, double bytes_per_vector) {
  const bool two_stage = dispatch == Dispatch::kTwoStage;
  GRACE_CHECK(two_stage || dispatch == Dispatch::kPerDevice, "one of the two that can be chosen");
  const bool exact = combine == Combine::kExact;
  const double there_out = two_stage ? fan_out.nodes : fan_out.devices_out;
  const double there_in = two_stage ? fan_out.forwards : fan_out.devices_in;
  const double back_out = exact ? fan_out.out : there_out;
  const double back_in = exact ? fan_out.in + (two_stage ? fan_out.passed : 0) : there_in;
  const double vectors = tokens / std::max(fan_out.tokens, 1.0) * bytes_per_vector;
  double seconds = 2 * latency_s(cluster, dispatch);
  if (cluster.num_nodes() > 1)
    seconds += vectors * largest_node(cluster) * (there_out + back_out) / cluster.between_nodes.bytes_per_s;
  if (largest_node(cluster) > 1)
    seconds += vectors * (there_in + back_in) / cluster.between_devices.bytes_per_s;
  return seconds;
}

StepChooser::StepChooser(const ModelConfig& config, const Cluster& cluster, Transport& transport,
                         std::span<const Dispatch> dispatches, int parts, Combine combine, Wire wire)
    : config_(config),
      cluster_(cluster),
      transport_(transport),
      dispatches_(dispatches),
      parts_(parts),
      combine_(combine),
      bytes_per_vector_(static_cast<double>(config.hidden_size * bytes_per_value(wire))) {
  GRACE_CHECK(!dispatches.empty(), "something to choose from");
}

Result<StepChoice> StepChooser::choose(std::size_t tokens) {
  StepChoice choice{dispatches_.front(), static_cast<std::size_t>(std::max(parts_, 1))};
  if ((dispatches_.size() == 1 && parts_ != 0) || transport_.size() == 1) return choice;
  const Message mine{seen_, static_cast<double>(tokens)};
  const auto all = GRACE_TRY(transport_.all_gather(std::as_bytes(std::span(&mine, 1))));
  FanOut seen;
  double most = 0, sum = 0;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    Message theirs;
    if (all[rank].size() != sizeof theirs)
      return peer_lost("rank " + std::to_string(rank) + ": tells " + std::to_string(all[rank].size()) +
                       " bytes of its step, not " + std::to_string(sizeof theirs));
    std::memcpy(&theirs, all[rank].data(), sizeof theirs);
    seen += theirs.seen;
    most = std::max(most, theirs.tokens);
    sum += theirs.tokens;
  }
  if (seen.tokens == 0) seen = even_fan_out(cluster_, config_.experts_per_token);
  seen_ = {};
  const auto seconds = [&](Dispatch dispatch) {
    return exchange_seconds(cluster_, seen, most, dispatch, combine_, bytes_per_vector_);
  };
  for (const Dispatch dispatch : dispatches_.subspan(1))
    if (seconds(dispatch) < seconds(choice.dispatch)) choice.dispatch = dispatch;
  if (parts_ != 0) return choice;
  const double rows = sum * config_.experts_per_token / config_.num_experts / 2;
  const double hidden = std::min(seconds(choice.dispatch), experts_seconds(config_, cluster_, most)) / 2;
  choice.parts = rows >= kRowsOfPart && hidden > 2 * latency_s(cluster_, choice.dispatch) ? 2 : 1;
  return choice;
}

void StepChooser::saw(std::span<const std::int32_t> device_of_choice) {
  if (dispatches_.size() == 1 && parts_ != 0) return;
  seen_ += fan_out_of(cluster_, DeviceId(transport_.rank()), device_of_choice, config_.experts_per_token);
}

}  // namespace grace
