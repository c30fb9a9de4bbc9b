#include "grace/cost/cost.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "grace/base/check.h"

namespace grace {

Result<Dispatch> parse_dispatch(std::string_view name) {
  for (const Dispatch dispatch : {Dispatch::kFlat, Dispatch::kPerDevice, Dispatch::kTwoStage})
    if (name_of(dispatch) == name) return dispatch;
  return invalid_input("dispatch `" + std::string(name) + "` is none of flat, per_device, two_stage");
}

std::string_view name_of(Dispatch dispatch) {
  switch (dispatch) {
    case Dispatch::kFlat:
      return "flat";
    case Dispatch::kPerDevice:
      return "per_device";
    case Dispatch::kTwoStage:
      break;
  }
  return "two_stage";
}

SendCounts count_sends(std::span<const std::int32_t> device_of_choice, int experts_per_token,
                       Dispatch dispatch, int num_devices) {
  GRACE_CHECK(dispatch != Dispatch::kTwoStage, "vectors of two stages do not go straight to their device");
  GRACE_CHECK(experts_per_token > 0 && num_devices > 0, "tokens have choices and there are devices");
  const auto top_k = static_cast<std::size_t>(experts_per_token);
  const auto devices = static_cast<std::size_t>(num_devices);
  GRACE_CHECK(device_of_choice.size() % top_k == 0, "device_of_choice is [T, K]");
  SendCounts counts{std::vector<std::int64_t>(devices, 0), std::vector<std::int64_t>(devices, 0)};
  std::vector<std::size_t> last_token(devices, 0);  // the token that last went to each device, from 1
  for (std::size_t i = 0; i < device_of_choice.size(); ++i) {
    if (device_of_choice[i] == kNoDevice.value) continue;
    const auto device = static_cast<std::size_t>(device_of_choice[i]);
    GRACE_CHECK(device_of_choice[i] >= 0 && device < devices, "a token goes to a device of the cluster");
    ++counts.assignments[device];
    const std::size_t token = i / top_k + 1;
    if (dispatch == Dispatch::kFlat || last_token[device] != token) ++counts.vectors[device];
    last_token[device] = token;
  }
  return counts;
}

LevelBytes& LevelBytes::operator+=(const LevelBytes& other) {
  intra_node_payload += other.intra_node_payload;
  cross_node_payload += other.cross_node_payload;
  intra_node_header += other.intra_node_header;
  cross_node_header += other.cross_node_header;
  return *this;
}

LayerTraffic traffic_of(std::span<const SendCounts> sends, const Cluster& cluster,
                        std::int64_t bytes_per_vector) {
  const auto devices = static_cast<std::size_t>(cluster.num_devices());
  GRACE_CHECK(sends.size() == devices, "one SendCounts for each source device");
  std::vector<NodeId> node_of_device;
  for (std::size_t d = 0; d < devices; ++d)
    node_of_device.push_back(cluster.node_of(DeviceId(static_cast<std::int32_t>(d))));

  LayerTraffic traffic;
  traffic.load.assign(devices, 0);
  for (std::size_t source = 0; source < devices; ++source) {
    GRACE_CHECK(sends[source].vectors.size() == devices && sends[source].assignments.size() == devices,
                "SendCounts are over all devices");
    for (std::size_t device = 0; device < devices; ++device) {
      const std::int64_t assignments = sends[source].assignments[device];
      const std::int64_t vectors = sends[source].vectors[device];
      traffic.load[device] += assignments;
      if (source == device) continue;
      const bool same_node = node_of_device[source] == node_of_device[device];
      const std::int64_t header = vectors * kBytesPerVectorHeader + assignments * kBytesPerAssignmentHeader;
      (same_node ? traffic.dispatch.intra_node_payload : traffic.dispatch.cross_node_payload) +=
          vectors * bytes_per_vector;
      (same_node ? traffic.dispatch.intra_node_header : traffic.dispatch.cross_node_header) += header;
      (same_node ? traffic.combine.intra_node_payload : traffic.combine.cross_node_payload) +=
          assignments * bytes_per_vector;
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
