// Attention blocks on a tape: grouped, and latent in both of its forms.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "grace/runtime/tape_layers.h"

namespace grace {

// Each token's last `window` of `all`, itself included; all where there is no window.
inline std::span<const TapeRange> seen_by(std::span<const TapeRange> all, std::size_t token, int window) {
  const std::size_t last = token + 1;
  const std::size_t count = window > 0 ? std::min(last, static_cast<std::size_t>(window)) : last;
  return all.subspan(last - count, count);
}

// Projected, normed, clipped: [heads] of head_dim.
inline std::vector<TapeRange> project_heads(const TapeOperations& run, const ModelConfig& config, TapeRange x,
                                            const TapeMatrix& weight, std::span<const float> bias,
                                            std::span<const float> norm, int head_dim) {
  TapeRange y = run.add(run.product(x, weight), bias);
  if (norm.size() == y.count) y = run.norm(y, norm, config.rms_norm_eps);
  const auto dim = static_cast<std::size_t>(head_dim);
  std::vector<TapeRange> heads;
  for (std::size_t first = 0; first < y.count; first += dim) {
    TapeRange head = y.part(first, dim);
    if (!norm.empty() && norm.size() != y.count) head = run.norm(head, norm, config.rms_norm_eps);
    heads.push_back(config.clip_qkv ? run.clipped(head, *config.clip_qkv) : head);
  }
  return heads;
}

inline TapeRange join_all(const TapeOperations& run, std::span<const TapeRange> parts) {
  const std::size_t begin = run.tape.size();
  for (const TapeRange& part : parts)
    for (std::size_t i = 0; i < part.count; ++i) run.tape.put(run.tape[part[i]], {{part[i], 1}}, {});
  return run.tape.since(begin);
}

inline void add_grouped_attention(const TapeOperations& run, const ModelConfig& config,
                                  const TapeAttention& weights, std::span<const float> norm,
                                  const kernels::Rotations& turns, std::vector<TapeRange>& h) {
  const auto heads = static_cast<std::size_t>(config.num_heads);
  const auto kv_heads = static_cast<std::size_t>(config.num_kv_heads);
  std::vector<std::vector<TapeRange>> keys(kv_heads), values(kv_heads), queries;  // [kv][t], q [t][head]
  for (std::size_t t = 0; t < h.size(); ++t) {
    const TapeRange x = run.rounded(run.norm(h[t], norm, config.rms_norm_eps));
    queries.push_back(
        project_heads(run, config, x, weights.q, weights.q_bias, weights.q_norm, config.head_dim));
    for (TapeRange& q : queries.back()) q = run.turned(q, turns, t);
    const auto k = project_heads(run, config, x, weights.k, weights.k_bias, weights.k_norm, config.head_dim);
    const auto v = project_heads(run, config, x, weights.v, weights.v_bias, {}, config.value_head_dim);
    for (std::size_t g = 0; g < kv_heads; ++g) {
      keys[g].push_back(run.rounded(run.turned(k[g], turns, t)));
      values[g].push_back(run.rounded(v[g]));
    }
  }
  for (std::size_t t = 0; t < h.size(); ++t) {
    std::vector<TapeRange> said;
    for (std::size_t head = 0; head < heads; ++head) {
      const std::size_t g = head / (heads / kv_heads);
      said.push_back(run.attended(queries[t][head], seen_by(keys[g], t, config.window),
                                  seen_by(values[g], t, config.window), config.attention_scale));
    }
    h[t] = run.add(run.add(h[t], run.product(run.rounded(join_all(run, said)), weights.o)), weights.o_bias);
  }
}

// alone: each token by itself, whose form is the absorbed one; else all at once, whose form is the expanded.
inline void add_latent_attention(const TapeOperations& run, const ModelConfig& config,
                                 const TapeAttention& weights, std::span<const float> norm,
                                 const kernels::Rotations& turns, bool alone, std::vector<TapeRange>& h) {
  constexpr double kInnerEps = 1e-6;
  const auto heads = static_cast<std::size_t>(config.num_heads),
             dim = static_cast<std::size_t>(config.head_dim);
  const auto rank = static_cast<std::size_t>(config.kv_rank),
             rotary = static_cast<std::size_t>(config.rotary_dim);
  const std::size_t key = dim - rotary;
  std::vector<TapeRange> queries, latents, ranks;
  std::vector<std::vector<TapeRange>> keys(heads), values(heads);
  for (std::size_t t = 0; t < h.size(); ++t) {
    const TapeRange x = run.rounded(run.norm(h[t], norm, config.rms_norm_eps));
    TapeRange down = x;
    if (!weights.q_down.empty())
      down = run.rounded(run.norm(run.product(x, weights.q_down), weights.q_norm, kInnerEps));
    queries.push_back(run.product(down, weights.q));
    const TapeRange both = run.product(x, weights.kv_down);
    const TapeRange normed = run.norm(both.part(0, rank), weights.k_norm, kInnerEps);
    latents.push_back(run.rounded(run.turned(run.join(normed, both.part(rank, rotary)), turns, t)));
    ranks.push_back(latents.back().part(0, rank));
    for (std::size_t head = 0; !alone && head < heads; ++head) {
      keys[head].push_back(
          run.join(run.product(ranks.back(), weights.keys[head]), latents.back().part(rank, rotary)));
      values[head].push_back(run.product(ranks.back(), weights.values[head]));
    }
  }
  for (std::size_t t = 0; t < h.size(); ++t) {
    std::vector<TapeRange> said;
    for (std::size_t head = 0; head < heads; ++head) {
      const TapeRange q = run.turned(queries[t].part(head * dim, dim), turns, t);
      if (!alone) {
        said.push_back(run.attended(q, seen_by(keys[head], t, config.window),
                                    seen_by(values[head], t, config.window), config.attention_scale));
        continue;
      }
      const TapeRange absorbed =
          run.join(run.product(run.rounded(q.part(0, key)), weights.absorb[head]), q.part(key, rotary));
      const TapeRange mixed = run.attended(absorbed, seen_by(latents, t, config.window),
                                           seen_by(ranks, t, config.window), config.attention_scale);
      said.push_back(run.product(run.rounded(mixed), weights.values[head]));
    }
    h[t] = run.add(h[t], run.product(run.rounded(join_all(run, said)), weights.o));
  }
}

}  // namespace grace
