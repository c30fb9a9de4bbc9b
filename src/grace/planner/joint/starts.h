// Where the search of `joint` begins: placements that are good for a reason.
#pragma once

#include <span>

#include "grace/affinity/affinity.h"
#include "grace/base/rng.h"
#include "grace/planner/joint/routed_state.h"

namespace grace::joint {

// What a start is made from. Everything outlives the call.
struct StartInput {
  const Cluster& cluster;
  const LayerStats& stats;
  const SearchTokens& tokens;
  const Weights& weights;
  std::span<const int> slots;  // [D]; their sum holds every expert once
  std::size_t proposals;       // for each local search over bitsets
  Rng rng;
};

// One copy of each expert: the best of bitset searches from spectral groups, heaviest-first packing and
// contiguous blocks.
Hosts single_copies(const StartInput& input);

// The hottest experts on every node, as many as the slots allow; the rest split over the nodes by affinity;
// each node's experts laid on its devices by affinity and load. If a node's slots hold every expert, no token
// leaves its node. A cluster of one node gives single_copies.
Hosts mirrored(const StartInput& input);

// Adds copies where slots are free, each time the one that lowers the value most, until none does; prices are
// fitted on the way.
void add_copies(RoutedState& state, std::span<const int> slots);

}  // namespace grace::joint
