// A model's shape and a trace -> what the simulator is told of the parts beside the experts.
#pragma once

#include <vector>

#include "grace/model/shape.h"
#include "grace/sim/simulate.h"
#include "grace/trace/trace.h"

namespace grace {

// The decoder layers that are simulated, ascending: the dense ones of the shape and the MoE ones of the
// trace. A MoE layer of which the trace knows nothing is left out. REQUIRES: check_shape(shape, trace) is ok.
std::vector<int> simulated_layers(const ModelShape& shape, const Trace& trace);

// Of those layers, in bf16.
ModelPrice price_of(const ModelShape& shape, const Trace& trace);

}  // namespace grace
