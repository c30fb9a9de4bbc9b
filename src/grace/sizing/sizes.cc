#include "grace/sizing/sizes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "grace/planner/planner.h"

namespace grace {

Result<ModelShape> shape_for(const std::string& asked, const std::string& trace_model) {
  if (!asked.empty()) return find_shape(asked);
  if (std::optional<ModelShape> known = known_shape(trace_model)) return *std::move(known);
  return invalid_input(
      fmt::format("the sizes of model \"{}\" are not known: pass --shape with one of {} or a config.json",
                  trace_model, fmt::join(known_shapes(), ", ")));
}

LayerSizes sizes_of(const ModelShape& shape) {
  return {.hidden = shape.hidden, .expert_ffn = shape.expert_ffn};
}

Result<LayerSizes> sizes_for(const std::string& asked, const std::string& trace_model) {
  const ModelShape shape = GRACE_TRY(shape_for(asked, trace_model));
  return sizes_of(shape);
}

Result<LayerSizes> sizes_if_known(const std::string& asked, const Trace& trace) {
  const Result<ModelShape> shape = shape_for(asked, trace.model);
  if (!shape.ok() && asked.empty()) return LayerSizes();
  if (!shape.ok()) return shape.error();
  GRACE_TRY(check_shape(shape.value(), trace));
  return sizes_of(shape.value());
}

Status check_sizes(std::string_view strategy, const LayerSizes& sizes, const std::string& trace_model) {
  if (sizes.known() || !needs_sizes(strategy)) return {};
  return invalid_input(
      fmt::format("strategy {}: minimises seconds, and the sizes of model \"{}\" are not known: pass --shape "
                  "with one of {} or a config.json, or take joint-slow or joint-fast",
                  strategy, trace_model, fmt::join(known_shapes(), ", ")));
}

Status check_shape(const ModelShape& shape, const Trace& trace) {
  const auto differs = [&](const char* what, std::int64_t of_shape, std::int64_t of_trace) {
    return invalid_input(fmt::format("shape {} has {} {}, the trace of {} has {}", shape.name, of_shape, what,
                                     trace.model, of_trace));
  };
  if (shape.num_experts != trace.num_experts) return differs("experts", shape.num_experts, trace.num_experts);
  if (shape.experts_per_token != trace.experts_per_token)
    return differs("experts per token", shape.experts_per_token, trace.experts_per_token);
  if (static_cast<int>(shape.moe_layers.size()) < trace.num_moe_layers())
    return differs("MoE layers", static_cast<std::int64_t>(shape.moe_layers.size()), trace.num_moe_layers());
  for (const int layer : trace.decoder_layers)
    if (!shape.is_moe(layer))
      return invalid_input(fmt::format("decoder layer {} of the trace of {} is no MoE layer of shape {}",
                                       layer, trace.model, shape.name));
  return {};
}

}  // namespace grace
