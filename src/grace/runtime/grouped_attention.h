// Attention whose heads share keys and values in groups, down to one head each.
#pragma once

#include "grace/runtime/attention_block.h"

namespace grace {

// A token gets the same bits in a prefill, in parts of one, and alone.
class GroupedAttention final : public AttentionBlock {
 public:
  GroupedAttention(const RankContext& context, const Checkpoint& checkpoint, LayerWeights& weights);
  void run(const RankContext& context, int layer, const BatchRows& rows, AttentionMemory& memory,
           std::span<float> h) override;

 private:
  // One of q, k and v.
  struct Projection {
    kernels::PackedMatrix weight;
    std::vector<float> bias;
    std::vector<float> norm;  // of the whole or of one head; empty for none
  };
  // x: [T, H]; [T, heads * head_dim] in scratch.
  static std::span<float> project(const RankContext& context, const Projection& projection,
                                  std::span<const float> x, Scratch& scratch);

  std::vector<float> norm_;
  Projection q_, k_, v_;
  kernels::PackedMatrix o_;
  std::vector<float> o_bias_;
};

}  // namespace grace
