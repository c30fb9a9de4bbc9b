// The attention half of a decoder layer: h += o(attention(rope(q), rope(k), v)) of the normed h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grace/kernels/kernels.h"
#include "grace/model/model.h"
#include "grace/runtime/context.h"
#include "grace/runtime/kv_cache.h"

namespace grace {

// The new tokens of some sequences: sequence after sequence.
struct BatchRows {
  std::span<const int> sequences;
  std::span<const int> num_new;             // [sequences]
  std::span<const std::int32_t> positions;  // [T]
};

// Owner of its packed weights. Thread-compatible.
class AttentionBlock {
 public:
  // Packs the weights, and empties those it has packed.
  explicit AttentionBlock(LayerWeights& weights);
  // h: [T, H], in and out. Appends the tokens' keys and values to the cache.
  void run(const RankContext& context, int layer, const BatchRows& rows, KvCache& cache,
           std::span<float> h) const;

 private:
  struct Projected {
    std::vector<float> q, k, v;  // [T, heads * head_dim], kv heads for k and v
  };
  Projected project(const RankContext& context, std::span<const float> h) const;

  std::vector<float> norm_, q_norm_, k_norm_;
  kernels::PackedMatrix q_, k_, v_, o_;
};

}  // namespace grace
