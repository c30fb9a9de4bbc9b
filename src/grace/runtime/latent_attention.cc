#include "grace/runtime/latent_attention.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "grace/base/bf16.h"
#include "grace/runtime/packing.h"

namespace grace {
namespace {

// Of the norms inside: the model's own code does not take the config's.
constexpr double kInnerEps = 1e-6;

std::size_t size_of(int value) { return static_cast<std::size_t>(value); }

// Rows [first, first + count) of a weight that is not stored transposed, as they are or as their transpose.
MatrixView rows_of(const MatrixView& weight, int first, int count, bool transposed) {
  MatrixView part = weight;
  part.data += std::int64_t{first} * weight.stride * static_cast<std::int64_t>(bytes_of(weight.element));
  part.rows = transposed ? weight.cols : count;
  part.cols = transposed ? count : weight.cols;
  part.transposed = transposed;
  return part;
}

// Row `row` of what is cached, from value `from` on, widened.
void read_cached(const kernels::CachedRows& rows, std::size_t row, std::size_t from, std::span<float> out) {
  const std::byte* begin = rows.blocks[row / kernels::kCacheBlock] +
                           (row % kernels::kCacheBlock * size_of(rows.row) + from) * bytes_of(rows.element);
  if (rows.element == Element::kF32) {
    std::memcpy(out.data(), begin, out.size_bytes());
    return;
  }
  const auto* halves = reinterpret_cast<const std::uint16_t*>(begin);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = f32_of_bf16(halves[i]);
}

}  // namespace

LatentAttention::LatentAttention(const RankContext& context, const Checkpoint& checkpoint,
                                 LayerWeights& weights)
    : norm_(std::move(weights.input_norm)),
      q_down_norm_(std::move(weights.q_down_norm)),
      q_(pack_weight(context, checkpoint, weights.q)),
      kv_down_(pack_weight(context, checkpoint, weights.kv_down)),
      kv_down_norm_(std::move(weights.kv_down_norm)),
      o_(pack_weight(context, checkpoint, weights.o)) {
  const ModelConfig& config = context.config;
  if (!weights.q_down.empty()) q_down_ = pack_weight(context, checkpoint, weights.q_down);
  const int key = config.head_dim - config.rotary_dim, value = config.value_head_dim;
  for (int head = 0; head < config.num_heads; ++head) {
    const int first = head * (key + value);
    const auto packed = [&](int begin, int count, bool transposed) {
      return pack_weight(context, checkpoint, rows_of(weights.kv_up, begin, count, transposed));
    };
    heads_.push_back(
        {packed(first, key, false), packed(first, key, true), packed(first + key, value, false)});
  }
}

// [T, heads, head_dim], not yet turned.
std::span<float> LatentAttention::queries(const RankContext& context, std::span<const float> x,
                                          AttentionMemory& memory) const {
  const std::size_t tokens = x.size() / norm_.size();
  if (!q_down_.empty()) {
    const std::span<float> down = memory.projected.take(tokens * size_of(q_down_.out));
    kernels::matmul(x, q_down_, down, context.pool);
    kernels::rms_norm(down, q_down_norm_, kInnerEps, down, context.pool);
    x = down;
  }
  const std::span<float> q = memory.q.take(tokens * size_of(q_.out));
  kernels::matmul(x, q_, q, context.pool);
  return q;
}

// [T, kv_rank + rotary_dim], as it is cached.
std::span<float> LatentAttention::latents(const RankContext& context, const BatchRows& rows,
                                          std::span<const float> x, AttentionMemory& memory) const {
  const ModelConfig& config = context.config;
  const std::span<float> latent = memory.k.take(x.size() / norm_.size() * size_of(kv_down_.out));
  kernels::matmul(x, kv_down_, latent, context.pool);
  for (std::size_t row = 0; row < latent.size(); row += size_of(kv_down_.out))
    kernels::rms_norm_row(latent.subspan(row, size_of(config.kv_rank)), kv_down_norm_, kInnerEps);
  kernels::rope(latent, 1, kv_down_.out, rows.turns, context.pool);
  return latent;
}

void LatentAttention::run(const RankContext& context, int layer, const BatchRows& rows,
                          AttentionMemory& memory, std::span<float> h) {
  const ModelConfig& config = context.config;
  const std::span<float> x = memory.normed.take(h.size());
  kernels::rms_norm(h, norm_, config.rms_norm_eps, x, context.pool);
  const std::span<float> q = queries(context, x, memory);
  kernels::rope(q, config.num_heads, config.head_dim, rows.turns, context.pool);
  const std::span<float> latent = latents(context, rows, x, memory);
  const std::span<float> attended = memory.attended.take(h.size() / norm_.size() * size_of(o_.in));
  const std::size_t row = size_of(kv_down_.out);
  memory.singles.clear();
  for (const SequenceRows& part : rows.sequences) {
    memory.cache.append(layer, part.sequence, latent.subspan(part.first * row, part.count * row), {});
    if (part.count == 1)
      memory.singles.push_back(part);
    else
      attend_expanded(context, layer, part, q, memory, attended);
  }
  if (!memory.singles.empty()) attend_absorbed(context, layer, memory.singles, q, memory, attended);
  add_product(context, attended, o_, {}, memory.projected, h);
}

void LatentAttention::attend_absorbed(const RankContext& context, int layer,
                                      std::span<const SequenceRows> singles, std::span<const float> q,
                                      AttentionMemory& memory, std::span<float> attended) {
  const ModelConfig& config = context.config;
  const std::size_t heads = heads_.size(), dim = size_of(config.head_dim),
                    value = size_of(config.value_head_dim);
  const std::size_t rank = size_of(config.kv_rank), rotary = size_of(config.rotary_dim), key = dim - rotary;
  const std::size_t row = rank + rotary, count = singles.size();
  const std::span<float> absorbed = memory.latent_q.take(count * heads * row);
  const std::span<float> mixed = memory.latent_out.take(count * heads * rank);
  memory.workers.resize(std::max(memory.workers.size(), size_of(context.pool.num_threads())));
  context.pool.for_each(heads, [&](std::size_t head, int thread) {
    AttentionMemory::Worker& worker = memory.workers[size_of(thread)];
    const std::span<float> from = worker.from.take(count * key), to = worker.to.take(count * rank);
    for (std::size_t i = 0; i < count; ++i)
      std::copy_n(q.data() + (singles[i].first * heads + head) * dim, key, from.data() + i * key);
    kernels::matmul_rows(from, heads_[head].absorb, to);
    for (std::size_t i = 0; i < count; ++i) {
      float* out = absorbed.data() + (i * heads + head) * row;
      std::copy_n(to.data() + i * rank, rank, out);
      std::copy_n(q.data() + (singles[i].first * heads + head) * dim + key, rotary, out + rank);
    }
  });
  memory.items.clear();
  for (std::size_t i = 0; i < count; ++i) {
    const kernels::CachedRows cached = memory.cache.keys(layer, singles[i].sequence);
    memory.items.push_back({absorbed.subspan(i * heads * row, heads * row), cached, cached,
                            mixed.subspan(i * heads * rank, heads * rank)});
  }
  kernels::attention(memory.items,
                     {config.num_heads, 1, static_cast<int>(row), config.kv_rank,
                      static_cast<float>(config.attention_scale), config.window},
                     context.arithmetic.instructions, context.pool);
  context.pool.for_each(heads, [&](std::size_t head, int thread) {
    AttentionMemory::Worker& worker = memory.workers[size_of(thread)];
    const std::span<float> from = worker.from.take(count * rank), to = worker.to.take(count * value);
    for (std::size_t i = 0; i < count; ++i)
      std::copy_n(mixed.data() + (i * heads + head) * rank, rank, from.data() + i * rank);
    kernels::matmul_rows(from, heads_[head].value, to);
    for (std::size_t i = 0; i < count; ++i)
      std::copy_n(to.data() + i * value, value, attended.data() + (singles[i].first * heads + head) * value);
  });
}

void LatentAttention::attend_expanded(const RankContext& context, int layer, const SequenceRows& rows,
                                      std::span<const float> q, AttentionMemory& memory,
                                      std::span<float> attended) {
  const ModelConfig& config = context.config;
  const std::size_t heads = heads_.size(), dim = size_of(config.head_dim),
                    value = size_of(config.value_head_dim);
  const std::size_t rank = size_of(config.kv_rank), rotary = size_of(config.rotary_dim), key = dim - rotary;
  const kernels::CachedRows cached = memory.cache.keys(layer, rows.sequence);
  const std::size_t length = size_of(cached.length);
  const std::span<float> latent = memory.latent_q.take(length * rank);
  for (std::size_t t = 0; t < length; ++t) read_cached(cached, t, 0, latent.subspan(t * rank, rank));
  const std::span<float> keys = memory.keys.take(length * heads * dim);
  const std::span<float> values = memory.values.take(length * heads * value);
  memory.workers.resize(std::max(memory.workers.size(), size_of(context.pool.num_threads())));
  context.pool.for_each(heads, [&](std::size_t head, int thread) {
    AttentionMemory::Worker& worker = memory.workers[size_of(thread)];
    const std::span<float> own = worker.from.take(length * key), said = worker.to.take(length * value);
    kernels::matmul_rows(latent, heads_[head].key, own);
    kernels::matmul_rows(latent, heads_[head].value, said);
    for (std::size_t t = 0; t < length; ++t) {
      float* to = keys.data() + (t * heads + head) * dim;
      std::copy_n(own.data() + t * key, key, to);
      read_cached(cached, t, rank, {to + key, rotary});
      std::copy_n(said.data() + t * value, value, values.data() + (t * heads + head) * value);
    }
  });
  const auto blocks_of = [&](std::span<const float> all, std::size_t row,
                             std::vector<const std::byte*>& blocks) {
    blocks.clear();
    for (std::size_t t = 0; t < length; t += kernels::kCacheBlock)
      blocks.push_back(reinterpret_cast<const std::byte*>(all.data() + t * row));
    return kernels::CachedRows{blocks, cached.length, static_cast<int>(row), Element::kF32};
  };
  const kernels::AttentionItem item{q.subspan(rows.first * heads * dim, rows.count * heads * dim),
                                    blocks_of(keys, heads * dim, memory.key_blocks),
                                    blocks_of(values, heads * value, memory.value_blocks),
                                    attended.subspan(rows.first * heads * value, rows.count * heads * value)};
  kernels::attention(std::span(&item, 1),
                     {config.num_heads, config.num_heads, config.head_dim, config.value_head_dim,
                      static_cast<float>(config.attention_scale), config.window},
                     context.arithmetic.instructions, context.pool);
}

}  // namespace grace
