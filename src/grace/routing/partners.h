// A gate held to partners (LayerPlan::partners_of_expert), where only what a free gate chose is known.
#pragma once

#include <cstdint>
#include <span>

#include "grace/plan/plan.h"

namespace grace {

// A token's choice of the most weight stays (ties, and without weights: its first); each other that is not
// among its partners becomes the first of them, the best first, that the token has not chosen. What was not
// chosen stays so. Twice is as once; nothing where the layer has no partners. choices: [K] of one token;
// weights: [K] or empty. REQUIRES: check_partners().
void hold_to_partners(const LayerPlan& layer, std::span<std::uint16_t> choices,
                      std::span<const float> weights = {});

}  // namespace grace
