// What a plan does to a trace, counted: affinity kept, loads, traffic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grace/affinity/affinity.h"
#include "grace/base/result.h"
#include "grace/base/thread_pool.h"
#include "grace/cluster/cluster.h"
#include "grace/cost/cost.h"
#include "grace/files/json.h"
#include "grace/plan/plan.h"
#include "grace/report/report.h"
#include "grace/trace/trace.h"

namespace grace::app {

// What one layer of a plan does to the trace it is judged on.
struct LayerFigures {
  double kept_on_device = 0;   // affinity inside the groups
  double kept_in_node = 0;     // affinity inside the nodes
  double random_groups = 0;    // the first, for random groups of the same sizes, mean of 20
  double group_max_mean = 1;   // heaviest group's load over the mean
  double routed_max_mean = 1;  // heaviest device's over the mean, as the plan predicts it with its copies
  int copies = 0;              // replicas
  double busiest_quarter = 0;  // share of the assignments that the busiest quarter of the experts takes
};
std::vector<LayerFigures> figures_of(const Plan& plan, std::span<const LayerStats> stats, std::uint64_t seed);
LayerFigures mean_of(std::span<const LayerFigures> layers);  // copies: the sum
report::Table table_of(const Plan& plan, std::span<const LayerFigures> layers);
Json json_of(std::span<const LayerFigures> layers);

// Share of the assignments that the busiest quarter of the experts takes; 0 without any.
double busiest_quarter(const LayerStats& stats);

// The trace routed by the plan, its sequences dealt to the devices round-robin.
struct Replay {
  std::vector<std::vector<double>>
      vectors;  // [M][D * D] vectors dispatched, sender by receiver; none to itself
  std::vector<std::vector<std::int64_t>> load;  // [M][D] assignments computed
};
Result<Replay> replay(const Trace& trace, const Plan& plan, const Cluster& cluster, Dispatch dispatch);

}  // namespace grace::app
