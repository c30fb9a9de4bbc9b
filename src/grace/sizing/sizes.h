// A model by its name or its config.json -> the sizes that turn a trace's counts into bytes and seconds.
#pragma once

#include <string>
#include <string_view>

#include "grace/base/result.h"
#include "grace/cost/objective.h"
#include "grace/model/shape.h"
#include "grace/trace/trace.h"

namespace grace {

// The shape that was asked for (a known name or a config.json), else the one that the trace's model is known
// by. Errors: invalid_input, naming the known shapes, where neither is known; those of find_shape.
Result<ModelShape> shape_for(const std::string& asked, const std::string& trace_model);
// The part of it that the evaluator needs, in bf16.
LayerSizes sizes_of(const ModelShape& shape);
Result<LayerSizes> sizes_for(const std::string& asked, const std::string& trace_model);
// The sizes for a trace where they are welcome and not needed: unknown ones where neither what was
// asked nor the trace's model says. Errors: those of find_shape and check_shape.
Result<LayerSizes> sizes_if_known(const std::string& asked, const Trace& trace);
// Errors: invalid_input, naming what needs no sizes, for a strategy that minimises seconds and
// sizes that are not known.
Status check_sizes(std::string_view strategy, const LayerSizes& sizes, const std::string& trace_model);

// Errors: invalid_input when the shape has another number of experts or MoE layers than the trace, fewer
// decoder layers, or chooses another number of experts.
Status check_shape(const ModelShape& shape, const Trace& trace);

}  // namespace grace
