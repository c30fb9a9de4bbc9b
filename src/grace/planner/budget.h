// What a budget of slots means: a number for every layer, or what the published method takes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/result.h"
#include "grace/base/thread_pool.h"
#include "grace/cluster/cluster.h"
#include "grace/plan/plan.h"
#include "grace/trace/trace.h"

namespace grace {

// The size bound at which other methods are compared with the published one; its paper prints no other.
inline constexpr double kPublishedR = 0.15;

// Copies a device may hold in a layer.
struct SlotsSpec {
  int slots = 0;          // 0: the default of PlanOptions
  bool as_grace = false;  // in each layer, what grace's own fullest device holds there
  std::string name() const;
};
// "8,9,grace". Errors: invalid_input for anything but numbers of at least 1 and `grace`.
Result<std::vector<SlotsSpec>> parse_slots(std::string_view list);

// [M] copies on the fullest device of each layer.
std::vector<int> fullest_devices(const Plan& plan);

// A budget as PlanOptions::slots: empty for the default. `grace` is planned from the trace at kPublishedR.
// Errors: those of make_plan.
Result<std::vector<int>> slots_for(const SlotsSpec& spec, const Trace& trace, const Cluster& cluster,
                                   std::uint64_t seed, ThreadPool& pool);

}  // namespace grace
