// Whether what the ranks will hold fits where they run.
#pragma once

#include "grace/base/result.h"
#include "grace/plan/plan.h"
#include "launch.h"

namespace grace::app {

// Reads no weight. A device's memory_bytes, which are for experts, bound its experts; the ranks that run on
// this machine must fit into what it has available, all of them together. Errors: invalid_input, naming the
// first rank that does not fit, what it needs and what there is.
Status check_memory(const Job& job, const Plan& plan);

}  // namespace grace::app
