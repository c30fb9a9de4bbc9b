#include "grace/runtime/attention_block.h"

#include <algorithm>

#include "grace/runtime/packing.h"

namespace grace {
namespace {

void clamp(std::span<float> x, float bound) {
  for (float& value : x) value = std::clamp(value, -bound, bound);
}

}  // namespace

AttentionBlock::AttentionBlock(LayerWeights& weights)
    : norm_(std::move(weights.input_norm)),
      q_norm_(std::move(weights.q_norm)),
      k_norm_(std::move(weights.k_norm)),
      q_(pack_and_free(weights.q)),
      k_(pack_and_free(weights.k)),
      v_(pack_and_free(weights.v)),
      o_(pack_and_free(weights.o)) {}

// The order is OLMoE's: project, norm over the whole projection, then clip.
AttentionBlock::Projected AttentionBlock::project(const RankContext& context,
                                                  std::span<const float> h) const {
  const ModelConfig& config = context.config;
  const std::size_t tokens = h.size() / norm_.size();
  std::vector<float> x(h.size());
  kernels::rms_norm(h, norm_, config.rms_norm_eps, x);
  Projected p;
  p.q.resize(tokens * static_cast<std::size_t>(q_.out));
  p.k.resize(tokens * static_cast<std::size_t>(k_.out));
  p.v.resize(tokens * static_cast<std::size_t>(v_.out));
  kernels::matmul(x, q_, p.q, context.pool);
  kernels::matmul(x, k_, p.k, context.pool);
  kernels::matmul(x, v_, p.v, context.pool);
  if (!q_norm_.empty()) kernels::rms_norm(p.q, q_norm_, config.rms_norm_eps, p.q);
  if (!k_norm_.empty()) kernels::rms_norm(p.k, k_norm_, config.rms_norm_eps, p.k);
  if (config.clip_qkv) {
    const auto bound = static_cast<float>(*config.clip_qkv);
    for (const std::span<float> x_qkv : {std::span(p.q), std::span(p.k), std::span(p.v)}) clamp(x_qkv, bound);
  }
  return p;
}

void AttentionBlock::run(const RankContext& context, int layer, const BatchRows& rows, KvCache& cache,
                         std::span<float> h) const {
  const ModelConfig& config = context.config;
  Projected p = project(context, h);
  kernels::rope(p.q, config.num_heads, config.head_dim, rows.positions, config.rope_theta);
  kernels::rope(p.k, config.num_kv_heads, config.head_dim, rows.positions, config.rope_theta);
  const auto q_row = static_cast<std::size_t>(q_.out);
  const auto kv_row = static_cast<std::size_t>(k_.out);
  std::vector<float> attended(p.q.size());
  std::size_t first = 0;
  for (std::size_t s = 0; s < rows.sequences.size(); ++s) {
    const auto count = static_cast<std::size_t>(rows.num_new[s]);
    const int sequence = rows.sequences[s];
    cache.append(layer, sequence, std::span(p.k).subspan(first * kv_row, count * kv_row),
                 std::span(p.v).subspan(first * kv_row, count * kv_row));
    kernels::attention(std::span(p.q).subspan(first * q_row, count * q_row), cache.keys(layer, sequence),
                       cache.values(layer, sequence), config.num_heads, config.num_kv_heads, config.head_dim,
                       std::span(attended).subspan(first * q_row, count * q_row), context.pool);
    first += count;
  }
  std::vector<float> projected(h.size());
  kernels::matmul(attended, o_, projected, context.pool);
  for (std::size_t i = 0; i < h.size(); ++i) h[i] += projected[i];
}

}  // namespace grace
