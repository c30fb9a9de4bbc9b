// Some panels of a product on one thread, and where its sums go.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "grace/kernels/cpu/product.h"
#include "grace/kernels/cpu/vector_functions.h"

namespace grace::kernels {

// Panels [first, last) of some rows; row r's outputs go to place(r)[0 .. out).
template <typename Place>
void multiply_into(const PackedMatrix& weight, const OperandRows& x, std::size_t rows, std::size_t first,
                   std::size_t last, std::vector<float>& sums, Place place) {
  const auto out = static_cast<std::size_t>(weight.out);
  multiply(weight, x, static_cast<int>(rows), first, last, {}, sums, [&](std::size_t panel, const float* of) {
    const std::size_t column = panel * kPanel, columns = std::min<std::size_t>(kPanel, out - column);
    for (std::size_t r = 0; r < rows; ++r) std::copy_n(of + r * kPanel, columns, place(r) + column);
  });
}

// silu(gate) * up of panels [first, last) into activations [rows, ffn]. `after` is what will be read next.
inline void activate_into(const PackedExpert& expert, const OperandRows& x, std::size_t rows,
                          std::size_t first, std::size_t last, std::span<const std::byte> after,
                          std::vector<float>& sums, float* activations) {
  constexpr std::size_t kHalfPanel = kPanel / 2;
  const auto ffn = static_cast<std::size_t>(expert.ffn);
  const VectorFunctions& functions = functions_for(expert.gate_up.arithmetic.instructions);
  multiply(expert.gate_up, x, static_cast<int>(rows), first, last, after, sums,
           [&](std::size_t panel, const float* of) {
             const std::size_t column = panel * kHalfPanel, columns = std::min(kHalfPanel, ffn - column);
             for (std::size_t r = 0; r < rows; ++r) {
               alignas(64) float half[kHalfPanel];
               functions.silu_times_up(of + r * kPanel, half);
               std::copy_n(half, columns, activations + r * ffn + column);
             }
           });
}

}  // namespace grace::kernels
