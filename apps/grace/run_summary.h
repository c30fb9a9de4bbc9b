// What a run's record adds up to: traffic, loads, seconds by the clock and on the critical path.
#pragma once

#include <cstdint>

#include "grace/cost/cost.h"
#include "record.h"

namespace grace::app {

// Sums over steps and layers.
struct PhaseSummary {
  LevelBytes dispatch, combine;
  std::int64_t busiest_node_bytes = 0;  // the most that one node sends to others in each exchange, added up

  // By the clock; where ranks share cores, others' work is in them. In each step the slowest rank's, over all
  // layers. idle: how much longer the rank that waited most was inside the exchanges than the one that waited
  // least.
  double all_to_all_s = 0, idle_s = 0, moe_s = 0;

  // The critical path, as if each rank had cores of its own: in each step and layer the most processor time
  // of any rank for gate, experts and packing, and the two exchanges, each from when the last rank begins it
  // to when the last one ends it. exchange_s and experts_s are parts of critical_s.
  double critical_s = 0, exchange_s = 0, experts_s = 0;

  double load_deviation = 0;  // standard deviation over mean of the devices' assignments; mean over layers
  double load_max_over_mean = 1;  // mean over layers

  std::int64_t cross_node_bytes() const;
  std::int64_t intra_node_bytes() const;
};

struct RunSummary {
  PhaseSummary whole, prefill, decode;
};
RunSummary summarise(const RunRecord& record);

}  // namespace grace::app
