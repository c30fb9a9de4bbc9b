#include "grace/cluster/cluster.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>

#include "grace/base/check.h"

namespace grace {
namespace {

struct Preset {
  std::string_view name;
  double device_bytes_per_s;           // between devices of a node, per device
  double node_bytes_per_s;             // out of a node, whatever its size
  double node_bytes_per_s_per_device;  // out of a node, for each of its devices
  double peak_flops_per_s;             // bf16
  double peak_memory_bytes_per_s;
};

constexpr double k25GbE = 3.125e9;
constexpr std::array kPresets = {
    Preset{"3090", 4e9, k25GbE, 0, 71e12, 0.94e12}, Preset{"4090", 31.5e9, k25GbE, 0, 165e12, 1.01e12},
    Preset{"a100", 300e9, k25GbE, 0, 312e12, 2.04e12},
    Preset{"h100", 450e9, 0, 50e9, 989e12, 3.35e12},  // one 400 Gb/s adapter beside each device
};
constexpr std::string_view kPresetOfPlainShapes = "a100";
constexpr double kReachable = 0.5;  // of the peaks, by kernels as they are
// What a small message costs: a kernel-driven copy on PCIe or NVLink, and a send through a network adapter.
constexpr double kDeviceLatencySeconds = 5e-6;
constexpr double kNodeLatencySeconds = 20e-6;

struct Shape {
  std::int64_t nodes = 2;
  std::int64_t devices = 4;
};

// A whole number in decimal digits; one too large for 64 bits counts as the largest.
std::optional<std::int64_t> parse_digits(std::string_view text) {
  if (text.empty() || text.find_first_not_of("0123456789") != text.npos) return std::nullopt;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? value : std::numeric_limits<std::int64_t>::max();
}

std::optional<Shape> parse_shape(std::string_view text) {
  const std::size_t x = text.find('x');
  if (x == text.npos) return std::nullopt;
  const auto nodes = parse_digits(text.substr(0, x));
  const auto devices = parse_digits(text.substr(x + 1));
  if (!nodes || !devices) return std::nullopt;
  return Shape{*nodes, *devices};
}

const Preset* find_preset(std::string_view name) {
  for (const Preset& preset : kPresets)
    if (preset.name == name) return &preset;
  return nullptr;
}

Result<Cluster> make_cluster(const Preset& preset, Shape shape, std::string_view spec) {
  const bool too_many =
      shape.nodes > kMaxDevices || shape.devices > kMaxDevices || shape.nodes * shape.devices > kMaxDevices;
  if (too_many || shape.nodes < 1 || shape.devices < 1)
    return invalid_input(fmt::format("cluster {}: {} nodes of {} devices, must be 1 to {} devices in all",
                                     spec, shape.nodes, shape.devices, kMaxDevices));
  Cluster cluster;
  cluster.name = spec;
  cluster.devices_of_node.assign(static_cast<std::size_t>(shape.nodes),
                                 std::vector<Device>(static_cast<std::size_t>(shape.devices)));
  cluster.between_devices = {preset.device_bytes_per_s, kDeviceLatencySeconds};
  cluster.between_nodes = {
      preset.node_bytes_per_s + preset.node_bytes_per_s_per_device * static_cast<double>(shape.devices),
      kNodeLatencySeconds};
  cluster.flops_per_s = preset.peak_flops_per_s * kReachable;
  cluster.memory_bytes_per_s = preset.peak_memory_bytes_per_s * kReachable;
  return cluster;
}

bool is_positive(double x) { return std::isfinite(x) && x > 0; }
bool is_not_negative(double x) { return std::isfinite(x) && x >= 0; }

void check_link(const Link& link, std::string_view name, std::vector<std::string>& found) {
  if (!is_positive(link.bytes_per_s))
    found.push_back(fmt::format("{}: bytes_per_s {} is not above 0", name, link.bytes_per_s));
  if (!is_not_negative(link.latency_s))
    found.push_back(fmt::format("{}: latency_s {} is negative or not finite", name, link.latency_s));
}

void check_device(const Device& device, std::string_view place, std::vector<std::string>& found) {
  if (device.slots < 0) found.push_back(fmt::format("{}: slots {} is negative", place, device.slots));
  if (!is_not_negative(device.memory_bytes))
    found.push_back(fmt::format("{}: memory_bytes {} is negative or not finite", place, device.memory_bytes));
  if (!is_positive(device.speed))
    found.push_back(fmt::format("{}: speed {} is not above 0", place, device.speed));
}

}  // namespace

int Cluster::num_devices() const {
  std::size_t count = 0;
  for (const auto& devices : devices_of_node) count += devices.size();
  return static_cast<int>(count);
}

DeviceId Cluster::first_device_of(NodeId node) const {
  GRACE_CHECK(node.value >= 0 && node.value < num_nodes(), "no such node");
  std::size_t first = 0;
  for (std::size_t n = 0; n < node.idx(); ++n) first += devices_of_node[n].size();
  return DeviceId(static_cast<int>(first));
}

NodeId Cluster::node_of(DeviceId device) const {
  GRACE_CHECK(device.value >= 0, "no such device");
  std::size_t left = device.idx();
  for (int node = 0; node < num_nodes(); ++node) {
    const std::size_t here = devices_of_node[static_cast<std::size_t>(node)].size();
    if (left < here) return NodeId(node);
    left -= here;
  }
  check_failed(__FILE__, __LINE__, "device < num_devices()", "no such device");
}

int Cluster::local_index_of(DeviceId device) const {
  return device.value - first_device_of(node_of(device)).value;
}

const Device& Cluster::device(DeviceId device) const {
  return devices_of_node[node_of(device).idx()][static_cast<std::size_t>(local_index_of(device))];
}

DeviceId Cluster::entry_of(NodeId node, DeviceId source) const {
  return DeviceId(first_device_of(node).value + local_index_of(source) % devices_in(node));
}

std::vector<std::string> violations(const Cluster& cluster) {
  std::vector<std::string> found;
  if (cluster.devices_of_node.empty()) found.push_back("there is no node");
  for (std::size_t node = 0; node < cluster.devices_of_node.size(); ++node) {
    const auto& devices = cluster.devices_of_node[node];
    if (devices.empty()) found.push_back(fmt::format("node {} has no device", node));
    for (std::size_t i = 0; i < devices.size(); ++i)
      check_device(devices[i], fmt::format("node {}: device {}", node, i), found);
  }
  if (cluster.num_devices() > kMaxDevices)
    found.push_back(fmt::format("{} devices, at most {}", cluster.num_devices(), kMaxDevices));
  check_link(cluster.between_devices, "between_devices", found);
  check_link(cluster.between_nodes, "between_nodes", found);
  if (!is_positive(cluster.flops_per_s))
    found.push_back(fmt::format("flops_per_s {} is not above 0", cluster.flops_per_s));
  if (!is_positive(cluster.memory_bytes_per_s))
    found.push_back(fmt::format("memory_bytes_per_s {} is not above 0", cluster.memory_bytes_per_s));
  return found;
}

Result<Cluster> parse_cluster(std::string_view spec) {
  if (const auto shape = parse_shape(spec))
    return make_cluster(*find_preset(kPresetOfPlainShapes), *shape, spec);
  const std::size_t colon = spec.find(':');
  if (const Preset* preset = find_preset(spec.substr(0, colon))) {
    if (colon == spec.npos) return make_cluster(*preset, Shape{}, spec);
    if (const auto shape = parse_shape(spec.substr(colon + 1))) return make_cluster(*preset, *shape, spec);
    return invalid_input(
        fmt::format("cluster {}: `{}` is not a shape such as 2x4", spec, spec.substr(colon + 1)));
  }
  std::error_code ignored;
  if (std::filesystem::exists(spec, ignored)) return read_cluster(spec);
  std::string names;
  for (const Preset& preset : kPresets) names += fmt::format("{}{}", names.empty() ? "" : ", ", preset.name);
  return invalid_input(fmt::format(
      "cluster `{}`: not a shape such as 2x4, a preset ({}), a preset with a shape (h100:2x4) or a file",
      spec, names));
}

}  // namespace grace
