// Weighted random choice among all copies, the form in which GRACE-MoE publishes WRR. `wrr` has the same
// shares without the noise of a draw.
#include <algorithm>

#include "grace/base/check.h"
#include "grace/base/rng.h"
#include "grace/routing/policy.h"

namespace grace::routing {
namespace {

// Every source draws its own stream of this seed, so that a replay meets the same draws.
constexpr std::uint64_t kSeed = 0x6772616365;

class RandomRouter final : public Router {
 public:
  explicit RandomRouter(const PolicyInput& input)
      : rng_(Rng(kSeed).fork(static_cast<std::uint64_t>(input.source.value))) {
    const std::vector<std::int64_t> weights = weights_of(input.predicted_load, input.cluster.num_devices());
    first_.push_back(0);
    for (std::vector<DeviceId> hosts : input.hosts_of_expert) {
      std::ranges::sort(hosts);
      std::uint64_t sum = 0;
      for (const DeviceId host : hosts)
        hosts_.push_back({host.value, sum += static_cast<std::uint64_t>(weights[host.idx()])});
      first_.push_back(hosts_.size());
    }
  }

  void route(std::span<const std::uint16_t> choices, int experts_per_token,
             std::span<std::int32_t> device_of_choice) override {
    GRACE_CHECK(choices.size() == device_of_choice.size(), "a device for each choice");
    GRACE_CHECK(experts_per_token > 0 && choices.size() % static_cast<std::size_t>(experts_per_token) == 0,
                "choices are [T, K]");
    for (std::size_t i = 0; i < choices.size(); ++i) device_of_choice[i] = device_for(choices[i]);
  }

 private:
  struct Host {
    std::int32_t device;
    std::uint64_t weights_up_to;  // of the expert's hosts up to this one, itself included
  };

  std::int32_t device_for(std::uint16_t expert) {
    if (expert == kNotChosen) return kNoDevice.value;
    GRACE_CHECK(expert + std::size_t{1} < first_.size(), "a chosen expert is in [0, E)");
    const std::span<const Host> hosts =
        std::span(hosts_).subspan(first_[expert], first_[expert + 1U] - first_[expert]);
    GRACE_CHECK(!hosts.empty(), "a chosen expert has a host");
    if (hosts.size() == 1) return hosts.front().device;  // no draw, so that it costs none
    const std::uint64_t draw = rng_.below(hosts.back().weights_up_to);
    std::size_t at = 0;
    while (draw >= hosts[at].weights_up_to) ++at;
    return hosts[at].device;
  }

  Rng rng_;
  std::vector<Host> hosts_;         // of expert e: [first_[e], first_[e + 1])
  std::vector<std::size_t> first_;  // [E + 1]
};

}  // namespace

std::unique_ptr<Router> make_wrr_random(const PolicyInput& input) {
  return std::make_unique<RandomRouter>(input);
}

}  // namespace grace::routing
