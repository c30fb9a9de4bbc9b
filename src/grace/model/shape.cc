#include "grace/model/shape.h"

#include <algorithm>

namespace grace {
namespace {

PartCost matrices(double parameters) { return {2 * parameters, 0, parameters}; }

double attention_parameters(const ModelShape& s) {
  const double hidden = s.hidden, heads = s.num_heads;
  const double queries = heads * s.head_dim;
  const double out = heads * s.value_head_dim * hidden;
  if (s.attention == AttentionKind::kGrouped)
    return hidden * queries + hidden * s.num_kv_heads * (s.head_dim + s.value_head_dim) + out;
  const double query = s.query_rank == 0 ? hidden * queries : s.query_rank * (hidden + queries);
  const double down = hidden * (s.kv_rank + s.rotary_dim);
  const double up = s.kv_rank * heads * (s.head_dim - s.rotary_dim + s.value_head_dim);
  return query + down + up + out;
}

double swiglu_parameters(double hidden, double ffn) { return 3 * hidden * ffn; }

// Of everything but the routed experts.
double parameters_beside_experts(const ModelShape& s) {
  const auto moe_layers = static_cast<double>(s.moe_layers.size());
  return s.num_layers * attention_parameters(s) +
         moe_layers * (router_cost(s).parameters + shared_experts_cost(s).parameters) +
         (s.num_layers - moe_layers) * dense_ffn_cost(s).parameters +
         (s.tied_head ? 1 : 2) * lm_head_cost(s).parameters;
}

}  // namespace

bool ModelShape::is_moe(int layer) const { return std::ranges::binary_search(moe_layers, layer); }

PartCost& PartCost::operator+=(const PartCost& other) {
  flops += other.flops;
  cache_values += other.cache_values;
  parameters += other.parameters;
  return *this;
}

PartCost attention_cost(const ModelShape& shape, Pass pass, double keys) {
  PartCost cost = matrices(attention_parameters(shape));
  const bool latent = shape.attention == AttentionKind::kLatent;
  const double cached = latent ? shape.kv_rank + shape.rotary_dim
                               : shape.num_kv_heads * (shape.head_dim + shape.value_head_dim);
  // Scores and their sum over values. What latent decoding saves in expanding keys and values it pays with
  // longer ones; its projections cost the same, absorbed into queries and outputs.
  const double width =
      latent && pass == Pass::kDecode ? cached + shape.kv_rank : shape.head_dim + shape.value_head_dim;
  cost.flops += 2.0 * shape.num_heads * width * keys;
  if (pass == Pass::kDecode) cost.cache_values = cached * keys;
  return cost;
}

PartCost dense_ffn_cost(const ModelShape& shape) {
  return matrices(swiglu_parameters(shape.hidden, shape.dense_ffn));
}

PartCost shared_experts_cost(const ModelShape& shape) {
  return matrices(swiglu_parameters(shape.hidden, shape.shared_expert_ffn));
}

PartCost router_cost(const ModelShape& shape) {
  return matrices(static_cast<double>(shape.hidden) * shape.num_experts);
}

PartCost lm_head_cost(const ModelShape& shape) {
  return matrices(static_cast<double>(shape.hidden) * shape.vocab);
}

PartCost expert_cost(const ModelShape& shape) {
  return matrices(swiglu_parameters(shape.hidden, shape.expert_ffn));
}

double total_parameters(const ModelShape& shape) {
  return parameters_beside_experts(shape) +
         static_cast<double>(shape.moe_layers.size()) * shape.num_experts * expert_cost(shape).parameters;
}

double active_parameters(const ModelShape& shape) {
  return parameters_beside_experts(shape) + static_cast<double>(shape.moe_layers.size()) *
                                                shape.experts_per_token * expert_cost(shape).parameters;
}

}  // namespace grace
