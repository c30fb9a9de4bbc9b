#include "grace/routing/policy.h"

#include <array>
#include <string>

#include "grace/base/check.h"

namespace grace {
namespace {

struct Policy {
  std::string_view name;
  std::unique_ptr<Router> (*make)(const routing::PolicyInput&);
};
constexpr std::array kPolicies{
    Policy{"tar", routing::make_tar},
    Policy{"wrr", routing::make_wrr},
    Policy{"wrr_random", routing::make_wrr_random},
    Policy{"primary", routing::make_primary},
    Policy{"cover", routing::make_cover},
    Policy{"cover_feedback", routing::make_cover_feedback},
};

}  // namespace

Result<std::unique_ptr<Router>> make_router(std::string_view policy, const LayerPlan& layer, int num_experts,
                                            const Cluster& cluster, DeviceId source) {
  GRACE_CHECK(source.value >= 0 && source.value < cluster.num_devices(),
              "the source is a device of the cluster");
  const std::vector<std::vector<DeviceId>> hosts = layer.hosts_of_expert(num_experts);
  std::string names;
  for (const Policy& known : kPolicies) {
    if (known.name == policy) return known.make({hosts, layer.predicted_load, layer.cover, cluster, source});
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  }
  return invalid_input("routing policy `" + std::string(policy) + "` is none of " + names);
}

}  // namespace grace
