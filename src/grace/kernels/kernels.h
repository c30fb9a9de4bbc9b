// The arithmetic of a decoder layer, on spans of f32. Two implementations: reference/ (plain loops, f64 sums)
// and cpu/ (loops the compiler vectorises). In cpu/ a row's result is the same bits however many rows share
// the call and at any thread count: each output is one sum in a fixed order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grace/base/ids.h"
#include "grace/base/thread_pool.h"

namespace grace::kernels {

// A weight [out, in] laid out for the cpu loops: panels of kPanel output columns, [out / kPanel][in][kPanel],
// zero-padded. Owner.
inline constexpr int kPanel = 32;
struct PackedMatrix {
  int out = 0;
  int in = 0;
  std::vector<float> panels;
};
// weight: [out, in] row-major.
PackedMatrix pack(std::span<const float> weight, int out, int in);

// y [T, out] = x [T, in] * weight^T.
void matmul(std::span<const float> x, const PackedMatrix& weight, std::span<float> y, ThreadPool& pool);
// One row range without a pool, for callers that parallelise over items of their own. x: [rows, in], y:
// [rows, out].
void matmul_rows(std::span<const float> x, const PackedMatrix& weight, std::span<float> y);

// y [T, n] = x / sqrt(mean(x^2) + eps) * scale, row by row. y may be x.
void rms_norm(std::span<const float> x, std::span<const float> scale, double eps, std::span<float> y);

// Rotates heads in place: x [T, heads, head_dim], rotate-half pairing (i, i + head_dim/2), angle position *
// theta^(-2i/head_dim). positions: [T].
void rope(std::span<float> x, int heads, int head_dim, std::span<const std::int32_t> positions, double theta);

// Causal attention of one sequence's `num_new` last tokens. q: [num_new, heads, head_dim]; keys, values:
// [length, kv_heads, head_dim], the new tokens' included. out: [num_new, heads, head_dim]; scale
// 1/sqrt(head_dim). Each (token, head) is one item of the pool.
void attention(std::span<const float> q, std::span<const float> keys, std::span<const float> values,
               int heads, int kv_heads, int head_dim, std::span<float> out, ThreadPool& pool);

// Softmax over E logits in f32, then the K largest (ties to the lower id), ids ascending by rank; weights
// renormalised to sum 1 when asked (OLMoE: not). logits: [T, E] -> ids [T, K], weights [T, K].
void gate(std::span<const float> logits, int num_experts, int experts_per_token, bool normalise,
          std::span<std::uint16_t> ids, std::span<float> weights);

// The same where a token may choose besides its best expert e only those whose allowed [E, E] in row e is not 0;
// weights are still of the softmax over all. REQUIRES: K - 1 of them in each row.
void gate_among(std::span<const float> logits, int num_experts, int experts_per_token, bool normalise,
                std::span<const char> allowed, std::span<std::uint16_t> ids, std::span<float> weights);

struct PackedExpert {
  PackedMatrix gate;  // [F, H]
  PackedMatrix up;    // [F, H]
  PackedMatrix down;  // [H, F]
};
// y [rows, H] = (silu(x gate^T) * (x up^T)) down^T for the rows of one expert.
void expert_ffn(std::span<const float> x, const PackedExpert& expert, std::span<float> y);

namespace reference {
void matmul(std::span<const float> x, std::span<const float> weight, int out, int in, std::span<float> y);
void rms_norm(std::span<const float> x, std::span<const float> scale, double eps, std::span<float> y);
void rope(std::span<float> x, int heads, int head_dim, std::span<const std::int32_t> positions, double theta);
void attention(std::span<const float> q, std::span<const float> keys, std::span<const float> values,
               int heads, int kv_heads, int head_dim, std::span<float> out);
void gate(std::span<const float> logits, int num_experts, int experts_per_token, bool normalise,
          std::span<std::uint16_t> ids, std::span<float> weights);
void expert_ffn(std::span<const float> x, std::span<const float> gate, std::span<const float> up,
                std::span<const float> down, int hidden, int ffn, std::span<float> y);
}  // namespace reference

}  // namespace grace::kernels
