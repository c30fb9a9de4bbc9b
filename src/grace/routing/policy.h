// Inside the routing room: what a policy is given, and the router of all policies that take turns among a
// fixed set of candidates.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "grace/cluster/cluster.h"
#include "grace/plan/plan.h"
#include "grace/routing/routing.h"

namespace grace::routing {

// Valid during the making of a router only.
struct PolicyInput {
  const std::vector<std::vector<DeviceId>>& hosts_of_expert;  // [E][copies], the primary's first
  std::span<const double> predicted_load;                     // [D], or empty: equal
  const CoverCosts& cover;
  const Cluster& cluster;
  DeviceId source;
};

// Which of an expert's hosts (never empty) take turns for tokens of input.source. Returns a subset, not
// empty.
using CandidatesOf = std::vector<DeviceId> (*)(std::span<const DeviceId> hosts, const PolicyInput& input);

// [D] 1 / predicted load as whole numbers in [1, 2^32], the least loaded device's 2^32; all 1 where nothing
// is predicted.
std::vector<std::int64_t> weights_of(std::span<const double> predicted_load, int num_devices);

// Each expert's candidates take smooth weighted turns, which the expert keeps for itself.
std::unique_ptr<Router> make_turn_router(const PolicyInput& input, CandidatesOf candidates_of);

std::unique_ptr<Router> make_tar(const PolicyInput& input);
std::unique_ptr<Router> make_wrr(const PolicyInput& input);
std::unique_ptr<Router> make_wrr_random(const PolicyInput& input);
std::unique_ptr<Router> make_primary(const PolicyInput& input);
std::unique_ptr<Router> make_cover(const PolicyInput& input);
std::unique_ptr<Router> make_cover_feedback(const PolicyInput& input);

}  // namespace grace::routing
