// The inner block of every matrix product: a few rows times one panel of kPanel output columns, once per
// instruction set.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "grace/kernels/kernels.h"

namespace grace::kernels {

// Every output element is one sum over k in ascending order by one operation (a fused multiply-add in avx512
// and avx2, which therefore agree in every bit; multiply then add in portable), whatever `rows` is: a row's
// bits never depend on its company.
struct Tile {
  std::string_view name;
  int max_rows = 0;
  // x: [rows, in], panel: [in, kPanel] -> out [rows, kPanel]. REQUIRES: 1 <= rows <= max_rows.
  void (*run)(const float* x, int rows, std::size_t in, const float* panel, float* out) = nullptr;
};

inline constexpr int kMaxTileRows = 8;

// Those this processor can run, best first; never empty.
std::span<const Tile> usable_tiles();

const Tile& portable_tile();
const Tile* avx2_tile();    // nullptr where the processor lacks it
const Tile* avx512_tile();  // nullptr where the processor lacks it

// kernels::matmul_rows with a tile of the caller's choice.
void matmul_rows_with(const Tile& tile, std::span<const float> x, const PackedMatrix& weight,
                      std::span<float> y);

}  // namespace grace::kernels
