#include "grace/runtime/dense_ffn.h"

#include <utility>

#include "grace/runtime/packing.h"

namespace grace {

DenseFfn::DenseFfn(const RankContext& context, const Checkpoint& checkpoint, LayerWeights& weights)
    : norm_(std::move(weights.post_attention_norm)), ffn_(pack_ffn(context, checkpoint, weights.dense)) {}

void DenseFfn::run(const RankContext& context, AttentionMemory& memory, std::span<float> h) const {
  const std::span<float> x = memory.normed.take(h.size()), y = memory.projected.take(h.size());
  kernels::rms_norm(h, norm_, context.config.rms_norm_eps, x, context.pool);
  kernels::ffn(x, ffn_, y, context.pool);
  for (std::size_t i = 0; i < h.size(); ++i) h[i] += y[i];
}

}  // namespace grace
