// The feed-forward half of a decoder layer that is not MoE.
#pragma once

#include <span>
#include <vector>

#include "grace/kernels/kernels.h"
#include "grace/model/model.h"
#include "grace/runtime/attention_block.h"
#include "grace/runtime/context.h"

namespace grace {

// Owner of its packed weights, which every rank holds whole. Thread-compatible.
class DenseFfn {
 public:
  DenseFfn(const RankContext& context, const Checkpoint& checkpoint, LayerWeights& weights);
  // h: [T, H] += ffn(norm(h)).
  void run(const RankContext& context, AttentionMemory& memory, std::span<float> h) const;

 private:
  std::vector<float> norm_;
  kernels::PackedExpert ffn_;
};

}  // namespace grace
