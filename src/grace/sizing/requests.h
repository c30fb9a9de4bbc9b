// What a person asks of the planner, in words and numbers -> options that are checked; for the command line
// and Python alike.
#pragma once

#include <cstdint>
#include <string>

#include "grace/affinity/load_profile.h"
#include "grace/base/result.h"
#include "grace/base/thread_pool.h"
#include "grace/cluster/cluster.h"
#include "grace/planner/compare.h"
#include "grace/planner/planner.h"
#include "grace/trace/trace.h"

namespace grace {

struct PlanRequest {
  std::string strategy = "grace";
  std::string slots;        // as parse_slots takes one; empty: the default of PlanOptions
  double memory_bytes = 0;  // in place of slots; 0: what the cluster says
  std::string shape;        // a known model or a config.json; empty: by the recording's model
  double r = -1;            // in [0, 1]; negative: the knee
  double effort = 1;
  int partners = 0;  // of c2r alone; 0: two for each expert a token chooses
  std::int64_t batch = 2048;
  std::uint64_t seed = 0;
};
// Errors: invalid_input, naming the field and its bound, for what no plan can be asked; those of find_shape
// and of slots_for. Sizes stay unknown where nothing needs them and the model is not known by its name.
Result<PlanOptions> plan_options(const PlanRequest& request, const Trace& trace, const Cluster& cluster,
                                 ThreadPool& pool);
// From loads alone, which no budget of grace's own can be had from.
Result<PlanOptions> plan_options(const PlanRequest& request, const LoadProfile& loads);

struct CompareRequest {
  std::string
      strategies;     // after commas, as parse_contender takes them; empty: all that are published, and joint
  std::string slots;  // as parse_slots takes them; empty: the default of PlanOptions
  std::string shape;
  int splits = 5;
  std::int64_t batch = 2048;
  double effort = 1;
  std::uint64_t seed = 0;
};
// Errors: as above; those of parse_contender.
Result<CompareOptions> compare_options(const CompareRequest& request, const Trace& trace);

}  // namespace grace
