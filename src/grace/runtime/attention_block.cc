#include "grace/runtime/attention_block.h"

#include "grace/runtime/grouped_attention.h"
#include "grace/runtime/latent_attention.h"

namespace grace {

std::unique_ptr<AttentionBlock> make_attention(const RankContext& context, const Checkpoint& checkpoint,
                                               LayerWeights& weights) {
  if (context.config.attention == AttentionKind::kLatent)
    return std::make_unique<LatentAttention>(context, checkpoint, weights);
  return std::make_unique<GroupedAttention>(context, checkpoint, weights);
}

CacheRow cache_row_of(const ModelConfig& config) {
  if (config.attention == AttentionKind::kLatent) return {config.kv_rank + config.rotary_dim, 0};
  return {config.num_kv_heads * config.head_dim, config.num_kv_heads * config.value_head_dim};
}

kernels::RotaryTable rotary_of(const ModelConfig& config) {
  const Rope& rope = config.rope;
  kernels::RotaryTable table;
  if (rope.yarn) {
    table = kernels::yarn_rotary(config.rotary_dim, rope.theta,
                                 {.factor = rope.yarn->factor,
                                  .original_positions = rope.yarn->original_positions,
                                  .beta_fast = rope.yarn->beta_fast,
                                  .beta_slow = rope.yarn->beta_slow,
                                  .truncate = rope.yarn->truncate});
  } else {
    table = kernels::plain_rotary(config.rotary_dim, rope.theta);
  }
  table.amplitude = static_cast<float>(rope.amplitude);
  table.interleaved = rope.interleaved;
  return table;
}

void add_product(const RankContext& context, std::span<const float> x, const kernels::PackedMatrix& weight,
                 std::span<const float> bias, Scratch& scratch, std::span<float> h) {
  const std::span<float> product = scratch.take(h.size());
  kernels::matmul(x, weight, product, context.pool);
  for (std::size_t i = 0; i < h.size(); ++i) h[i] += product[i];
  for (std::size_t row = 0; !bias.empty() && row < h.size(); row += bias.size())
    for (std::size_t i = 0; i < bias.size(); ++i) h[row + i] += bias[i];
}

}  // namespace grace
