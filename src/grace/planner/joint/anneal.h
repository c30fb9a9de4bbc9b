// The search over placements with copies: replace, swap, add and drop copies on the routed objective.
#pragma once

#include <span>

#include "grace/base/rng.h"
#include "grace/planner/joint/routed_state.h"

namespace grace::joint {

// Simulated annealing of `proposals` changes, from `heat` times the usual temperature; prices follow. Ends in
// the best state seen, with prices fitted. Never more copies on a device than slots.
void anneal(RoutedState& state, std::span<const int> slots, std::size_t proposals, double heat, Rng rng);

}  // namespace grace::joint
