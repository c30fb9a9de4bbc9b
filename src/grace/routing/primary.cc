// Always the primary copy: what a plan does without its replicas.
#include "grace/routing/policy.h"

namespace grace::routing {

std::unique_ptr<Router> make_primary(const PolicyInput& input) {
  return make_turn_router(input, [](std::span<const DeviceId> hosts, const PolicyInput&) {
    return std::vector<DeviceId>{hosts.front()};
  });
}

}  // namespace grace::routing
