// The cluster as JSON: docs/formats/cluster.md.
#include <fmt/format.h>

#include <initializer_list>

#include "grace/cluster/cluster.h"
#include "grace/files/json_file.h"
#include "grace/files/mapped_file.h"

namespace grace {
namespace {

constexpr std::int64_t kFormatVersion = 1;
constexpr std::int64_t kMaxSlots = 65'534;  // there are no more experts in a layer

// Most keys have defaults, so one that is misspelt would pass in silence.
Status refuse_unknown_keys(const Json& object, std::initializer_list<std::string_view> known,
                           std::string_view place) {
  if (!object.is_object()) return invalid_input(fmt::format("{}: not an object", place));
  for (const auto& [key, value] : object.items()) {
    bool is_known = false;
    for (const std::string_view name : known) is_known = is_known || key == name;
    if (!is_known)
      return invalid_input(
          fmt::format("{}: key {} is not one of {}", place, shown(Json(key)), fmt::join(known, ", ")));
  }
  return {};
}

Result<double> get_number_or(const Json& object, std::string_view key, std::string_view place,
                             double otherwise) {
  if (!object.contains(std::string(key))) return otherwise;
  return get_number(object, key, place);
}

Result<std::int64_t> get_int_or(const Json& object, std::string_view key, std::string_view place,
                                std::int64_t otherwise, std::int64_t highest) {
  if (!object.contains(std::string(key))) return otherwise;
  return get_int(object, key, place, 0, highest);
}

Result<const Json*> get_array(const Json& object, const std::string& key, std::string_view place) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array())
    return invalid_input(fmt::format("{}: {} is not a list", place, key));
  return &*found;
}

Result<Link> parse_link(const Json& file, const std::string& key, std::string_view place) {
  const std::string here = fmt::format("{}: {}", place, key);
  const auto found = file.find(key);
  if (found == file.end()) return invalid_input(here + " is absent");
  GRACE_TRY(refuse_unknown_keys(*found, {"bytes_per_s", "latency_s"}, here));
  Link link;
  link.bytes_per_s = GRACE_TRY(get_number(*found, "bytes_per_s", here));
  link.latency_s = GRACE_TRY(get_number(*found, "latency_s", here));
  return link;
}

Result<std::vector<Device>> parse_node(const Json& node, std::string_view place) {
  GRACE_TRY(refuse_unknown_keys(node, {"devices"}, place));
  const Json& kinds = *GRACE_TRY(get_array(node, "devices", place));
  std::vector<Device> devices;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const std::string here = fmt::format("{}: devices[{}]", place, i);
    GRACE_TRY(refuse_unknown_keys(kinds[i], {"count", "slots", "memory_bytes", "speed"}, here));
    const std::int64_t room = kMaxDevices - static_cast<std::int64_t>(devices.size());
    const std::int64_t count = GRACE_TRY(get_int_or(kinds[i], "count", here, 1, kMaxDevices));
    if (count < 1 || count > room)
      return invalid_input(fmt::format("{}: count {} is outside [1, {}]", here, count, room));
    Device device;
    device.slots = static_cast<int>(GRACE_TRY(get_int_or(kinds[i], "slots", here, 0, kMaxSlots)));
    device.memory_bytes = GRACE_TRY(get_number_or(kinds[i], "memory_bytes", here, device.memory_bytes));
    device.speed = GRACE_TRY(get_number_or(kinds[i], "speed", here, device.speed));
    devices.insert(devices.end(), static_cast<std::size_t>(count), device);
  }
  return devices;
}

Result<Cluster> cluster_of_json(const Json& file, std::string_view place) {
  GRACE_TRY(refuse_unknown_keys(file,
                                {"format_version", "name", "nodes", "between_devices", "between_nodes",
                                 "flops_per_s", "memory_bytes_per_s"},
                                place));
  GRACE_TRY(get_int(file, "format_version", place, kFormatVersion, kFormatVersion));
  Cluster cluster;
  cluster.name = file.contains("name") ? GRACE_TRY(get_string(file, "name", place)) : std::string(place);
  const Json& nodes = *GRACE_TRY(get_array(file, "nodes", place));
  if (nodes.size() > static_cast<std::size_t>(kMaxDevices))
    return invalid_input(fmt::format("{}: {} nodes, at most {}", place, nodes.size(), kMaxDevices));
  for (std::size_t i = 0; i < nodes.size(); ++i)
    cluster.devices_of_node.push_back(
        GRACE_TRY(parse_node(nodes[i], fmt::format("{}: nodes[{}]", place, i))));
  cluster.between_devices = GRACE_TRY(parse_link(file, "between_devices", place));
  // A single node has nothing to measure here.
  cluster.between_nodes = nodes.size() == 1 && !file.contains("between_nodes")
                              ? cluster.between_devices
                              : GRACE_TRY(parse_link(file, "between_nodes", place));
  cluster.flops_per_s = GRACE_TRY(get_number(file, "flops_per_s", place));
  cluster.memory_bytes_per_s = GRACE_TRY(get_number(file, "memory_bytes_per_s", place));
  const std::vector<std::string> found = violations(cluster);
  if (!found.empty()) return invalid_input(fmt::format("{}: {}", place, found.front()));
  return cluster;
}

Json json_of(const Link& link) { return {{"bytes_per_s", link.bytes_per_s}, {"latency_s", link.latency_s}}; }

// Equal neighbours share one entry.
Json json_of(const std::vector<Device>& devices) {
  Json kinds = Json::array();
  for (std::size_t i = 0; i < devices.size();) {
    std::size_t end = i + 1;
    while (end < devices.size() && devices[end] == devices[i]) ++end;
    Json kind = Json::object();
    kind["count"] = end - i;
    kind["slots"] = devices[i].slots;
    kind["memory_bytes"] = devices[i].memory_bytes;
    kind["speed"] = devices[i].speed;
    kinds.push_back(std::move(kind));
    i = end;
  }
  return kinds;
}

}  // namespace

Result<Cluster> parse_cluster_file(std::string_view text, std::string_view place) {
  const Json file = GRACE_TRY(parse_json(text, place));
  return cluster_of_json(file, place);
}

Result<Cluster> read_cluster(const std::filesystem::path& path) {
  const std::string text = GRACE_TRY(read_text(path));
  return parse_cluster_file(text, path.string());
}

Status write_cluster(const std::filesystem::path& path, const Cluster& cluster) {
  const std::vector<std::string> found = violations(cluster);
  if (!found.empty()) return invalid_input(fmt::format("{}: {}", path.string(), found.front()));
  Json file = Json::object();
  file["format_version"] = kFormatVersion;
  file["name"] = cluster.name;
  file["nodes"] = Json::array();
  for (const auto& devices : cluster.devices_of_node) {
    Json node = Json::object();
    node["devices"] = json_of(devices);
    file["nodes"].push_back(std::move(node));
  }
  file["between_devices"] = json_of(cluster.between_devices);
  file["between_nodes"] = json_of(cluster.between_nodes);
  file["flops_per_s"] = cluster.flops_per_s;
  file["memory_bytes_per_s"] = cluster.memory_bytes_per_s;
  return write_json(path, file);
}

}  // namespace grace
