// Whether what the ranks will hold fits where they run.
#pragma once

#include <cstdint>
#include <optional>

#include "grace/base/result.h"
#include "grace/plan/plan.h"
#include "launch.h"

namespace grace::app {

// What this machine could give without paging; nothing where it does not say.
std::optional<double> available_bytes();

// Reads no weight. A device's memory_bytes, which are for experts, bound its experts; the ranks that run on
// this machine must fit into what it has available, all of them together, each with the keys and values of
// cached_tokens. Errors: invalid_input, naming the first rank that does not fit, what it needs and what there
// is.
Status check_memory(const Job& job, const Plan& plan, std::int64_t cached_tokens = 0);

// On a terminal, to whom started the job: what the fullest rank will hold.
void say_memory(const Job& job, const Plan& plan, std::int64_t cached_tokens = 0);

}  // namespace grace::app
