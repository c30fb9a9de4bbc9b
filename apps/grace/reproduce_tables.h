// The published method's claims (GRACE-MoE, arXiv 2509.25041, first and fourth version), one table each, on
// held-out sequences.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/result.h"
#include "grace/base/thread_pool.h"
#include "grace/cluster/cluster.h"
#include "grace/cost/objective.h"
#include "grace/trace/trace.h"
#include "output.h"
#include "reproduce_rows.h"

namespace grace::app {

struct Subject {
  std::string name;  // of the trace, for titles
  Trace trace;
  LayerSizes sizes;  // known
  bool is_made_up = false;
};

// How everything is measured. Everything outlives the call.
struct Measure {
  const Cluster& cluster;
  int splits = 5;
  std::int64_t batch = 2048;
  std::uint64_t seed = 0;
  double effort = 0.2;  // of joint's search
  ThreadPool& pool;
};

// 1. The six configurations, with the baselines they are measured against.
Result<ReproducedTable> configurations_table(const Subject& subject, const Measure& measure);
// 2. The size bound r from 0 to 0.5, and none.
Result<ReproducedTable> size_bound_table(const Subject& subject, const Measure& measure);
// 3. What the busiest groups take.
Result<ReproducedTable> busiest_table(const Subject& subject, const Measure& measure);
// 4. Copies of the most activated experts against the most collaborating.
Result<ReproducedTable> copy_what_table(const Subject& subject, const Measure& measure);
// 5. Ever more copies, at a large and at a small batch.
Result<ReproducedTable> copies_table(const Subject& subject, const Measure& measure);
// 6. Plans from one trace serving another. REQUIRES: at least two subjects.
Result<ReproducedTable> transfer_table(std::span<const Subject> subjects, const Measure& measure);
// 7. Three models on three clusters of two machines, simulated; measure.cluster has no part in it.
Result<ReproducedTable> grid_table(std::span<const Subject> subjects, const Measure& measure);

// A known model's shape with what a trace of it might look like, for models that nobody has recorded here.
Result<Subject> made_up_subject(std::string_view model, const Measure& measure);

}  // namespace grace::app
