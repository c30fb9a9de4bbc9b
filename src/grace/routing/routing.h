// One batch and one plan -> which copy serves each (token, expert). One file per policy; planner, simulator
// and runtime share it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "grace/base/ids.h"
#include "grace/base/result.h"
#include "grace/cluster/cluster.h"
#include "grace/plan/plan.h"

namespace grace {

// Routes the tokens of one source device through one layer. It remembers its turns (weighted round-robin)
// from call to call, so a replay must route the same tokens in the same order from the same source.
// Thread-compatible; the plan may go once it is made.
class Router {
 public:
  virtual ~Router() = default;
  // choices: [T, K] experts, kNotChosen for none. Returns in device_of_choice [T, K] the device whose copy
  // serves each, kNoDevice.value where none was chosen. REQUIRES: every chosen expert is in [0, E) and has a
  // host.
  virtual void route(std::span<const std::uint16_t> choices, int experts_per_token,
                     std::span<std::int32_t> device_of_choice) = 0;
  // What all sources together have sent to each device so far in this pass, [D] assignments, and how many the
  // pass will have in all. Policies with feedback heed it, the others do not; it may be called every few
  // dozen tokens.
  virtual void observe(std::span<const std::int64_t> load, std::int64_t expected) {
    static_cast<void>(load);
    static_cast<void>(expected);
  }
};

inline constexpr std::uint16_t kNotChosen = 0xffff;

// `tar`: a copy on the token's own device, else a weighted turn among the copies on its node, else among the
// rest (GRACE-MoE). `wrr`: a weighted turn among all copies. `primary`: always the primary. `wrr_random`: a
// draw among all copies with probability in proportion to 1 / predicted load, as GRACE-MoE publishes it; what
// is drawn depends on the source and the order of calls alone. `cover`: the cheapest set of devices at the
// plan's prices (cover.h); `cover_feedback`: the same, at prices that follow what observe() reports. Turns
// are smooth weighted round-robin (as nginx's) by 1 / predicted load, ties to the lower device. Errors:
// invalid_input, naming the policies, for an unknown one.
Result<std::unique_ptr<Router>> make_router(std::string_view policy, const LayerPlan& layer, int num_experts,
                                            const Cluster& cluster, DeviceId source);

}  // namespace grace
