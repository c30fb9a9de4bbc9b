// A simulation as tables, JSON and a timeline.
#pragma once

#include <string>
#include <vector>

#include "grace/files/json.h"
#include "grace/report/report.h"
#include "grace/sim/replay.h"
#include "grace/sim/simulate.h"
#include "grace/trace/trace.h"

namespace grace::app {

// What was simulated, and how to name it.
struct SimulationSetup {
  std::string plan;   // its strategy
  std::string shape;  // the model's
  std::string cluster, dispatch, combine;
  int batch = 0;
  Workload workload;
  int num_sequences = 0;
  std::vector<int> moe_decoder_layers;        // [M]
  std::vector<int> simulated_decoder_layers;  // [layers of the model]
  int left_out = 0;                           // MoE layers of the model that the trace lacks
  LayerSizes sizes;
};

report::Table summary_table(const Simulation& simulation, const SimulationSetup& setup);
report::Table layer_table(const Simulation& simulation, const SimulationSetup& setup);
report::Table device_table(const Simulation& simulation);
// Times in seconds, bytes of payload there and back, over the whole trace where no mean is named.
Json json_of(const Simulation& simulation, const SimulationSetup& setup);

// What the runtime will count, summed over layers, by stage and level.
report::Table wire_table(const Replay& replay);
Json json_of(const Replay& replay);

// The recorded passes, a lane for each device, at most max_spans bars. With names_layers, a bar's name has
// its decoder layer, as suits a viewer that zooms; without, the legend stays short.
report::Timeline timeline_of(const Simulation& simulation, const ModelPrice& model,
                             const SimulationSetup& setup, std::size_t max_spans, bool names_layers);

}  // namespace grace::app
