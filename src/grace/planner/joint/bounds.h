// Certificates: what no routing over given copies, and no placement within given slots, can go below.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grace/cluster/cluster.h"
#include "grace/planner/joint/routed_state.h"
#include "grace/planner/joint/search_tokens.h"

namespace grace::joint {

// The least possible load of the fullest device when each expert's assignments may be split freely over its
// hosts: the largest ratio of what a set of experts has to do and how many devices hold any of them. Exact.
// load: [E]; hosts: [E, D], every expert with a load has one. 0 for no load.
double exact_min_max_load(std::span<const std::int64_t> load, const Hosts& hosts, std::size_t num_devices);

// What no routing of these tokens over these hosts can go below, in the objective of Weights per token,
// node * x + device * y + load * (max/mean work).
struct RoutingBound {
  double value = 0;
  std::vector<double> prices;  // [D] at which the tokens' exact covers add up to it
};
// The largest device's work is at least any weighted mean of all: with weights that sum to 1 as prices,
// tokens are independent of each other and the sum of their exact covers is a bound (Lagrange). Tried: all
// weight on the devices that no routing can relieve, and `steps` of ascent from there or from the prices
// given (empty: even ones). Work counts as at least what an expert's assignments cost when all are in one
// copy, the least it can be per assignment. REQUIRES: hosts hold every expert. About 1 us a token and step at
// 6 experts on 8 devices.
RoutingBound routing_bound(const Cluster& cluster, const SearchTokens& tokens, const Weights& weights,
                           const Hosts& hosts, std::span<const double> prices, int steps = 12);

// What no placement within the slots, however routed, can go below. Loose: it lets each expert choose its
// best company without regard to the others.
struct PlacementBound {
  double nodes = 0;    // x
  double vectors = 0;  // x + y
  double load = 1;     // max/mean work
  double value = 0;    // in the objective of Weights per token
};
// slots: [D], summing to at least the experts.
PlacementBound placement_bound(const Cluster& cluster, const SearchTokens& tokens, const Weights& weights,
                               std::span<const int> slots);

}  // namespace grace::joint
