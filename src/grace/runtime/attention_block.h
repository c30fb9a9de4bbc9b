// The attention half of a decoder layer: h += what the token takes from those before it, out of the normed h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "grace/kernels/kernels.h"
#include "grace/model/model.h"
#include "grace/runtime/context.h"
#include "grace/runtime/kv_cache.h"
#include "grace/runtime/scratch.h"

namespace grace {

// What one sequence's tokens of a step are in [T]: [first, first + count).
struct SequenceRows {
  int sequence = 0;
  std::size_t first = 0, count = 0;
};

// The new tokens of some sequences: sequence after sequence.
struct BatchRows {
  std::span<const SequenceRows> sequences;
  const kernels::Rotations& turns;
};

// What the layers of an engine share. Thread-compatible.
struct AttentionMemory {
  KvCache cache;
  Scratch normed = {}, q = {}, k = {}, v = {}, attended = {}, projected = {};
  std::vector<kernels::AttentionItem> items = {};
  // Of latent attention: queries and results in the latent space, or keys and values out of it.
  Scratch latent_q = {}, latent_out = {}, keys = {}, values = {};
  std::vector<const std::byte*> key_blocks = {}, value_blocks = {};
  std::vector<SequenceRows> singles = {};
  struct Worker {
    Scratch from, to;
  };
  std::vector<Worker> workers = {};  // [threads]
};

// One layer's. Owner of its packed weights. Thread-compatible.
class AttentionBlock {
 public:
  virtual ~AttentionBlock() = default;
  // h: [T, H], in and out. Appends to the cache. What a token gets depends on its sequence alone, and on how
  // many tokens of it come at once only where the block says so.
  virtual void run(const RankContext& context, int layer, const BatchRows& rows, AttentionMemory& memory,
                   std::span<float> h) = 0;
};

// Packs the weights of one layer and takes its norms. The block that the config's attention calls for.
std::unique_ptr<AttentionBlock> make_attention(const RankContext& context, const Checkpoint& checkpoint,
                                               LayerWeights& weights);

// Values that a token takes in the cache of one layer.
struct CacheRow {
  int keys = 0, values = 0;
};
CacheRow cache_row_of(const ModelConfig& config);
// How the kernels turn its queries and keys.
kernels::RotaryTable rotary_of(const ModelConfig& config);

// h += x weight^T + bias (which may be empty), h: [T, out].
void add_product(const RankContext& context, std::span<const float> x, const kernels::PackedMatrix& weight,
                 std::span<const float> bias, Scratch& scratch, std::span<float> h);

}  // namespace grace
