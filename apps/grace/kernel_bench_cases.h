// The kernels of a layer at the sizes of a shape, with random weights: what `grace bench --kernels` measures.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "grace/base/matrix_view.h"
#include "grace/base/thread_pool.h"
#include "grace/kernels/kernels.h"
#include "grace/model/shape.h"
#include "kernel_bench_peer.h"

namespace grace::app {

// What a call cannot do without. bytes: what no cache can hold, because so much else lies between two uses of
// it in a model: weights, and cached keys and values; activations count nothing.
struct Work {
  double operations = 0, bytes = 0;
};

// One kernel at one size. Calls go through copies, so that each finds what it reads in memory.
struct KernelCase {
  std::string name;
  kernels::Numbers numbers = kernels::Numbers::kF32;  // of its products
  std::function<Work()> call;
  // How far a few rows of the last call are from the reference's: root mean square, relative; and how far
  // they may be.
  std::function<double()> error;
  double bound = 0;
  std::function<void()> peer;  // one call of the other library's; empty where there is none
};

struct KernelOptions {
  ModelShape shape;
  kernels::Arithmetic arithmetic;
  std::vector<int> tokens;  // empty: each group's own
  int threads = 1;
};

// Cases that share their weights, which are made when the group's turn comes and go with its cases.
struct KernelGroup {
  std::string title;
  double bytes = 0;  // that its cases hold
  std::function<std::vector<KernelCase>()> make;
};

// Of everything that a token passes in the shape's layers; the pool outlives them.
std::vector<KernelGroup> kernel_groups(const KernelOptions& options, ThreadPool& pool);

// The parts of it.
KernelGroup expert_group(const KernelOptions& options, ThreadPool& pool);
std::vector<KernelGroup> dense_groups(const KernelOptions& options, ThreadPool& pool);
KernelGroup attention_group(const KernelOptions& options, ThreadPool& pool);

// More than any last cache that we know: so much lies between two uses of a copy.
inline constexpr std::size_t kColdBytes = std::size_t{256} << 20;
// Copies of something of `bytes`; what is tiny has fewer.
inline std::size_t cold_copies(std::size_t bytes) {
  constexpr std::size_t kMost = 4096;
  return std::min(kMost, (kColdBytes + bytes - 1) / bytes);
}

// Random bf16 numbers of a size that keeps sums over `depth` of them near one; the same at any thread count.
std::vector<std::uint16_t> random_bf16(std::size_t count, int depth, std::uint64_t seed, ThreadPool& pool);
std::vector<float> widened(std::span<const std::uint16_t> values);
inline MatrixView view_of(std::span<const std::uint16_t> weight, int rows, int cols) {
  return {rows, cols, Element::kBf16, std::as_bytes(weight).data(), cols, false};
}
double relative_error(std::span<const float> got, std::span<const float> expected);

// Bounds of `error`. Where all factors are bf16 numbers only the order of sums differs; int8 rounds both
// factors to 127 steps. An expert's activations are rounded once more in between.
inline double product_bound(kernels::Numbers numbers) {
  return numbers == kernels::Numbers::kInt8 ? 0.02 : 5e-5;
}
inline double expert_bound(kernels::Numbers numbers) {
  return numbers == kernels::Numbers::kInt8 ? 0.08 : numbers == kernels::Numbers::kBf16 ? 0x1p-8 : 5e-5;
}

}  // namespace grace::app
