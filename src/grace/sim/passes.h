// Inside the simulation room: the workload of a trace, pass by pass, and what replaying it needs.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "grace/base/ids.h"
#include "grace/base/result.h"
#include "grace/cluster/cluster.h"
#include "grace/plan/plan.h"
#include "grace/routing/routing.h"
#include "grace/sim/replay.h"
#include "grace/trace/trace.h"

namespace grace::sim {

// What one device feeds in one pass through the model.
struct DeviceWork {
  std::vector<std::int64_t> tokens;  // rows of the trace, in the order in which they are fed
  std::int64_t sequences = 0;        // that these tokens belong to
  double keys = 0;                   // summed over tokens: what each attends to, its own key included
  double windowed_keys = 0;          // the same where a token attends to no more than the window
};

struct Pass {
  bool prefill = false;
  std::vector<DeviceWork> devices;  // [D]
};

// Each `batch` consecutive sequences (0: all) are one static batch, its i-th on device i mod D: a pass with
// their prompts, then passes with one decoded token of each that has one left. A batch without prompts has
// an empty first pass. What came before a trace's first token is not counted as keys. window 0: none.
std::vector<Pass> passes_of(const Trace& trace, int batch, int num_devices, int window);

// The passes of the workload where there is one, else of the trace. REQUIRES: check_workload().
std::vector<Pass> passes_of(const Trace& trace, int batch, const Workload& workload, int num_devices,
                            int window);

// Errors: invalid_input when plan, cluster and trace disagree, batch is negative, or a workload has no batch,
// no decode, or a trace without tokens.
Status check_workload(const Trace& trace, const Plan& plan, const Cluster& cluster, int batch,
                      const Workload& workload = {});

// One for each device, [D]. Errors: those of make_router.
Result<std::vector<std::unique_ptr<Router>>> make_routers(const Plan& plan, MoeOrdinal layer,
                                                          const Cluster& cluster);

}  // namespace grace::sim
