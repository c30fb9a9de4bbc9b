// Attention over one cached vector a token, out of which each head's keys and values are made (DeepSeek's
// MLA).
#pragma once

#include "grace/runtime/attention_block.h"

namespace grace {

// The cache has [kv_rank + rotary_dim] a token: what keys and values come from, normed, and the one key with
// position that all heads share. A sequence's only new token attends to those vectors themselves, the
// matrices that would make keys and values of them being applied to its query and its result; where several
// tokens of it come at once, keys and values are made for all of them. Both add up the same products in
// another order, so that which one is taken is told by the number of new tokens alone
// (docs/decisions/019-latent-attention.md).
class LatentAttention final : public AttentionBlock {
 public:
  LatentAttention(const RankContext& context, const Checkpoint& checkpoint, LayerWeights& weights);
  void run(const RankContext& context, int layer, const BatchRows& rows, AttentionMemory& memory,
           std::span<float> h) override;

 private:
  // One head's part of the matrix that makes keys and values.
  struct Head {
    kernels::PackedMatrix key;     // [key without position, kv_rank]
    kernels::PackedMatrix absorb;  // its transpose
    kernels::PackedMatrix value;   // [value, kv_rank]
  };

  std::span<float> queries(const RankContext& context, std::span<const float> x,
                           AttentionMemory& memory) const;
  std::span<float> latents(const RankContext& context, const BatchRows& rows, std::span<const float> x,
                           AttentionMemory& memory) const;
  void attend_absorbed(const RankContext& context, int layer, std::span<const SequenceRows> singles,
                       std::span<const float> q, AttentionMemory& memory, std::span<float> attended);
  void attend_expanded(const RankContext& context, int layer, const SequenceRows& rows,
                       std::span<const float> q, AttentionMemory& memory, std::span<float> attended);

  std::vector<float> norm_;
  kernels::PackedMatrix q_down_;  // empty where queries are not compressed
  std::vector<float> q_down_norm_;
  kernels::PackedMatrix q_;
  kernels::PackedMatrix kv_down_;
  std::vector<float> kv_down_norm_;
  std::vector<Head> heads_;
  kernels::PackedMatrix o_;
};

}  // namespace grace
