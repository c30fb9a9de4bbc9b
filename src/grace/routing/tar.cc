// Topology-aware: the nearest level that has a copy, and turns within it.
#include <algorithm>

#include "grace/routing/policy.h"

namespace grace::routing {
namespace {

std::vector<DeviceId> nearest(std::span<const DeviceId> hosts, const PolicyInput& input) {
  if (std::ranges::find(hosts, input.source) != hosts.end()) return {input.source};
  const NodeId home = input.cluster.node_of(input.source);
  std::vector<DeviceId> on_node;
  for (const DeviceId host : hosts)
    if (input.cluster.node_of(host) == home) on_node.push_back(host);
  return on_node.empty() ? std::vector<DeviceId>(hosts.begin(), hosts.end()) : on_node;
}

}  // namespace

std::unique_ptr<Router> make_tar(const PolicyInput& input) { return make_turn_router(input, nearest); }

}  // namespace grace::routing
