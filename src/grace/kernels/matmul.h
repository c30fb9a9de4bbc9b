// Products of activations and packed weights. A row's result is the same bits however many rows share the
// call and at any thread count: each output is one sum in a fixed order.
#pragma once

#include <span>

#include "grace/base/thread_pool.h"
#include "grace/kernels/packed.h"

namespace grace::kernels {

// y [T, out] = x [T, in] * weight^T, by the weight's arithmetic. The pool shares out the panels.
void matmul(std::span<const float> x, const PackedMatrix& weight, std::span<float> y, ThreadPool& pool);
// The same on the calling thread, for callers that parallelise over items of their own.
void matmul_rows(std::span<const float> x, const PackedMatrix& weight, std::span<float> y);

// y [rows, H] = (silu(x gate^T) * (x up^T)) down^T for rows of one expert, wherever they lie: each of `rows`
// points to H values, y likewise. On the calling thread; what it needs in between is kept by the thread.
void expert_ffn(std::span<const float* const> rows, const PackedExpert& expert, std::span<float* const> y);

// Rows of one expert, and where their outputs go.
struct ExpertRows {
  const PackedExpert* expert = nullptr;
  std::span<const float* const> rows;
  std::span<float* const> y;
};
// Several experts at once. Where there are many, each is one thread's from beginning to end; else the pool's
// threads share out the panels of all.
void expert_ffns(std::span<const ExpertRows> experts, ThreadPool& pool);
// The same for x [T, H], y [T, H], the pool's threads sharing out the panels: dense layers and shared
// experts.
void ffn(std::span<const float> x, const PackedExpert& expert, std::span<float> y, ThreadPool& pool);

namespace reference {
void matmul(std::span<const float> x, std::span<const float> weight, int out, int in, std::span<float> y);
void expert_ffn(std::span<const float> x, std::span<const float> gate, std::span<const float> up,
                std::span<const float> down, int hidden, int ffn, std::span<float> y);
}  // namespace reference

}  // namespace grace::kernels
