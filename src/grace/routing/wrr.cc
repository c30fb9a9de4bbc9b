// Weighted round-robin: every copy takes its turn, wherever it is.
#include "grace/routing/policy.h"

namespace grace::routing {

std::unique_ptr<Router> make_wrr(const PolicyInput& input) {
  return make_turn_router(input, [](std::span<const DeviceId> hosts, const PolicyInput&) {
    return std::vector<DeviceId>(hosts.begin(), hosts.end());
  });
}

}  // namespace grace::routing
