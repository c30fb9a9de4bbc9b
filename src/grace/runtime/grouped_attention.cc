#include "grace/runtime/grouped_attention.h"

#include <algorithm>
#include <utility>

#include "grace/runtime/packing.h"

namespace grace {

GroupedAttention::GroupedAttention(const RankContext& context, const Checkpoint& checkpoint,
                                   LayerWeights& weights)
    : norm_(std::move(weights.input_norm)),
      q_{pack_weight(context, checkpoint, weights.q), std::move(weights.q_bias), std::move(weights.q_norm)},
      k_{pack_weight(context, checkpoint, weights.k), std::move(weights.k_bias), std::move(weights.k_norm)},
      v_{pack_weight(context, checkpoint, weights.v), std::move(weights.v_bias), {}},
      o_(pack_weight(context, checkpoint, weights.o)),
      o_bias_(std::move(weights.o_bias)) {}

// The order is OLMoE's where there is more than one: project, norm, then clip.
std::span<float> GroupedAttention::project(const RankContext& context, const Projection& projection,
                                           std::span<const float> x, Scratch& scratch) {
  const std::size_t tokens = x.size() / static_cast<std::size_t>(context.config.hidden_size);
  const std::span<float> y = scratch.take(tokens * static_cast<std::size_t>(projection.weight.out));
  kernels::matmul(x, projection.weight, y, context.pool);
  const std::vector<float>& bias = projection.bias;
  for (std::size_t row = 0; !bias.empty() && row < y.size(); row += bias.size())
    for (std::size_t i = 0; i < bias.size(); ++i) y[row + i] += bias[i];
  if (!projection.norm.empty())
    kernels::rms_norm(y, projection.norm, context.config.rms_norm_eps, y, context.pool);
  if (context.config.clip_qkv) {
    const auto bound = static_cast<float>(*context.config.clip_qkv);
    for (float& value : y) value = std::clamp(value, -bound, bound);
  }
  return y;
}

void GroupedAttention::run(const RankContext& context, int layer, const BatchRows& rows,
                           AttentionMemory& memory, std::span<float> h) {
  const ModelConfig& config = context.config;
  const std::span<float> x = memory.normed.take(h.size());
  kernels::rms_norm(h, norm_, config.rms_norm_eps, x, context.pool);
  const std::span<float> q = project(context, q_, x, memory.q);
  const std::span<float> k = project(context, k_, x, memory.k);
  const std::span<float> v = project(context, v_, x, memory.v);
  kernels::rope(q, config.num_heads, config.head_dim, rows.turns, context.pool);
  kernels::rope(k, config.num_kv_heads, config.head_dim, rows.turns, context.pool);
  const auto q_row = static_cast<std::size_t>(q_.weight.out), o_row = static_cast<std::size_t>(o_.in);
  const auto k_row = static_cast<std::size_t>(k_.weight.out), v_row = static_cast<std::size_t>(v_.weight.out);
  const std::span<float> attended = memory.attended.take(q.size() / q_row * o_row);
  memory.items.clear();
  for (const auto& [sequence, first, count] : rows.sequences) {
    memory.cache.append(layer, sequence, k.subspan(first * k_row, count * k_row),
                        v.subspan(first * v_row, count * v_row));
    memory.items.push_back({q.subspan(first * q_row, count * q_row), memory.cache.keys(layer, sequence),
                            memory.cache.values(layer, sequence),
                            attended.subspan(first * o_row, count * o_row)});
  }
  kernels::attention(memory.items,
                     {config.num_heads, config.num_kv_heads, config.head_dim, config.value_head_dim,
                      static_cast<float>(config.attention_scale), config.window},
                     context.arithmetic.instructions, context.pool);
  add_product(context, attended, o_, o_bias_, memory.projected, h);
}

}  // namespace grace
