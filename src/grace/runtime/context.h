// What every part of one rank's engine works with.
#pragma once

#include <string>

#include "grace/base/ids.h"
#include "grace/base/thread_pool.h"
#include "grace/cluster/cluster.h"
#include "grace/comm/transport.h"
#include "grace/cost/cost.h"
#include "grace/kernels/instructions.h"
#include "grace/model/model.h"
#include "grace/runtime/packed_cache.h"
#include "grace/runtime/stopwatch.h"

namespace grace {

// References to what the engine owns or was lent; they live as long as the engine.
struct RankContext {
  const ModelConfig& config;
  const Cluster& cluster;
  Transport& transport;
  ThreadPool& pool;
  Dispatch dispatch;
  Combine combine;
  Wire wire;
  Overlap overlap;
  bool aligned;
  kernels::Arithmetic arithmetic;
  SpanLog& spans;
  PackedCache* cache = nullptr;  // of packed weights, where there is one

  DeviceId device() const { return DeviceId{transport.rank()}; }
};

// What another rank sent cannot be: tells all ranks why this one leaves, and is the error to leave with.
inline Error lost(const RankContext& context, const std::string& what) {
  context.transport.abort(what);
  return peer_lost(what);
}

}  // namespace grace
