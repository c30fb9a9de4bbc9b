// The last steps of the search where experts are few: every neighbour of a placement, with prices of its own.
#pragma once

#include <cstddef>
#include <span>

#include "grace/base/rng.h"
#include "grace/planner/joint/routed_state.h"

namespace grace::joint {

// Where experts are few, one copy moves a good part of the load, and what a change is worth shows only at the
// prices that suit it. Tries additions, replacements and exchanges one by one, each with prices fitted from
// even ones, and goes on from the first that lowers the objective; where none does, from a few random
// exchanges. Ends when the time of `tries` fits is spent, in the best placement seen, with its prices; no
// worse than the start. REQUIRES: the state is within slots.
void descend(RoutedState& state, std::span<const int> slots, std::span<const double> even_prices,
             std::size_t tries, Rng rng);

}  // namespace grace::joint
