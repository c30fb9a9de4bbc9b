// The recorded passes of a simulation as bars over time, a lane for each device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "grace/sim/simulate.h"

namespace grace {

enum class SpanPart { kAttention, kDenseFfn, kBesideExperts, kDispatch, kExperts, kWait, kCombine, kHead };
std::string_view name_of(SpanPart part);

struct SimulatedSpan {
  int device = 0;
  std::int64_t pass = 0;
  int layer = -1;  // index into the model's layers, or MoE ordinal where it has none; -1 for the head
  SpanPart part = SpanPart::kAttention;
  double begin_s = 0, end_s = 0;
};

struct SimulatedSpans {
  std::vector<SimulatedSpan> spans;
  bool all = true;  // whether everything recorded is there
};

// A part begins on all devices at once, when the slowest has ended the one before; who has computed its
// experts waits. Dispatch and combine take half of the exchange each. At most max_spans, cut where a layer
// begins. `model` is what was simulated.
SimulatedSpans spans_of(const Simulation& simulation, const ModelPrice& model, std::size_t max_spans);

}  // namespace grace
