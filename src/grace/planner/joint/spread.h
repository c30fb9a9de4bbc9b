// One budget over all layers: where the next slot is worth most.
#pragma once

#include <span>
#include <vector>

#include "grace/planner/joint/search.h"

namespace grace::joint {

// A quick estimate of the objective of one layer at `least`, least + 1, .. `most` slots on every device:
// mirrored starts with prices, no annealing. Never rising.
std::vector<double> values_by_slots(const LayerProblem& problem, int least, int most);

// Slots of each layer, [M], that sum to at most `total`: from `least` each, the steepest fall of the value
// per slot first (of the lower hull, so that a layer that gains only by several slots at once gets them
// together); ties to the lower layer. value: [M][..] from values_by_slots, each of one entry at least.
// REQUIRES: total >= M * least.
std::vector<int> spread_slots(std::span<const std::vector<double>> value, int least, int total);

}  // namespace grace::joint
