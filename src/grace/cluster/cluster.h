// The machine: nodes, their devices, the links between them and what a device can do.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/ids.h"
#include "grace/base/result.h"

namespace grace {

struct Link {
  double bytes_per_s = 0;  // one direction
  double latency_s = 0;
  bool operator==(const Link&) const = default;
};

struct Device {
  int slots = 0;            // copies it can hold in one layer; 0: not limited
  double memory_bytes = 0;  // for expert weights; 0: not limited
  double speed = 1;         // relative to flops_per_s and memory_bytes_per_s below
  bool operator==(const Device&) const = default;
};

// Every machine and every plan stays within this many devices.
inline constexpr int kMaxDevices = 1024;

// Nodes are numbered as listed, devices consecutively within them; nodes may differ in size. Immutable once
// made; thread-safe.
struct Cluster {
  std::string name;  // as it was asked for: "2x4", "h100:2x4", a path; or what its file calls it
  std::vector<std::vector<Device>> devices_of_node;  // [N][devices of that node], neither empty
  Link between_devices;                              // inside a node, per device
  Link between_nodes;                                // per node
  double flops_per_s = 0;                            // bf16, reachable, per device
  double memory_bytes_per_s = 0;                     // reachable, per device

  int num_nodes() const { return static_cast<int>(devices_of_node.size()); }
  int num_devices() const;
  // The next five REQUIRE an id of this cluster.
  int devices_in(NodeId node) const { return static_cast<int>(devices_of_node[node.idx()].size()); }
  DeviceId first_device_of(NodeId node) const;
  NodeId node_of(DeviceId device) const;
  // 0-based position inside its node.
  int local_index_of(DeviceId device) const;
  const Device& device(DeviceId device) const;
  // The device by which vectors of `source` enter `node`: the one with its local index, modulo the node's
  // size; itself in its own node.
  DeviceId entry_of(NodeId node, DeviceId source) const;
  bool operator==(const Cluster&) const = default;
};

// Every way in which the cluster is not one, a line each: `node 1 has no device`. Empty when it is sound.
std::vector<std::string> violations(const Cluster& cluster);

// `NxD` (a100's constants), `PRESET`, `PRESET:NxD`, or a cluster file. Presets: 3090, 4090, a100, h100 (2x4
// unless a shape is given). Constants: PCIe 1.0 4 GB/s (the paper's figure), PCIe 4.0 31.5, NVLink 300 and
// 450 GB/s between devices; 25 GbE 3.125 GB/s a node, h100 50 GB/s a device; half of the bf16 peak 71 / 165 /
// 312 / 989 TFLOP/s and of 0.94 / 1.01 / 2.04 / 3.35 TB/s counts as reachable. Latencies are assumed, 5 us
// between devices and 20 us between nodes; devices are limited neither in slots nor in memory. Errors:
// invalid_input, naming the presets, for anything else, and for 0 or more than 1,024 devices.
Result<Cluster> parse_cluster(std::string_view spec);

// The JSON file of docs/formats/cluster.md. Errors: io; invalid_input with the first of violations(cluster),
// or the place that does not parse.
Result<Cluster> read_cluster(const std::filesystem::path& path);
// The same from memory; `place` stands for the path in messages.
Result<Cluster> parse_cluster_file(std::string_view text, std::string_view place);
Status write_cluster(const std::filesystem::path& path, const Cluster& cluster);

}  // namespace grace
