// Measures what the ranks of a job reach: exchanges of each level, expert kernels, streaming of weights.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "grace/base/result.h"
#include "grace/base/thread_pool.h"
#include "grace/cluster/calibration.h"
#include "grace/cluster/cluster.h"
#include "grace/comm/transport.h"
#include "grace/kernels/instructions.h"

namespace grace::app {

struct CalibrateOptions {
  std::optional<Cluster> shape;         // which ranks share a node; without it those of one host do
  double seconds = 8;                   // how long to go on with rounds, above 0; three are measured at least
  kernels::Arithmetic arithmetic = {};  // of the expert kernels
};

// One kind of exchange at one size.
struct MeasuredExchange {
  std::string name;  // "between devices", ...
  double bytes = 0;  // the most that one end sends or receives
  Figure seconds;
};

struct Calibration {
  Cluster cluster;           // what goes into the file; memory_bytes as in the shape
  std::vector<int> host_of;  // [ranks], hosts counted from 0
  std::optional<LinkFit> between_devices, between_nodes;  // all at once; absent where nothing to measure
  std::optional<LinkFit> two_devices, two_nodes;          // one message at a time between two ranks
  std::vector<MeasuredExchange> exchanges;
  Figure flops_per_s, memory_bytes_per_s;  // of the median rank, all working at once
  int rounds = 0;
  double seconds = 0;

  int num_hosts() const;
};

// Collective: every rank returns the same. A round measures everything once, so that what drifts is spread
// over all; the first one warms up and is left out. progress, called on every rank, is told milliseconds
// done and in all. Errors: invalid_input for less than two ranks, for a shape of another number of devices,
// and for hosts whose ranks are not consecutive; those of the transport.
Result<Calibration> calibrate(Transport& transport, ThreadPool& pool, const CalibrateOptions& options,
                              const std::function<void(std::int64_t, std::int64_t)>& progress);

}  // namespace grace::app
