// Products by tiles of 16 rows by 64 bytes, written once over `T`, which has them in hardware or in plain
// loops: zero<t>(), load<t>(from, stride), store<t>(to, stride), and Dot::add<c, a, b>().
#pragma once

#include <cstddef>
#include <cstring>

#include "grace/kernels/cpu/tile.h"

namespace grace::kernels {
namespace {

inline constexpr int kTileRows = 16;
inline constexpr std::size_t kTileBytes = 64;           // of a row
inline constexpr std::size_t kStepsOfTile = kTileRows;  // a tile of weights: 16 steps
inline constexpr std::size_t kStreams = 8;              // in which what is next is fetched

// Line i of the next panel, in the order of parallel streams.
inline const std::byte* next_line(const TileCall& call, std::size_t i) {
  const std::size_t lines = call.next_bytes / kTileBytes, each = lines / kStreams;
  const std::size_t line = each == 0 || i >= each * kStreams ? i : i % kStreams * each + i / kStreams;
  return call.next + line * kTileBytes;
}

// 16 or 32 rows by one panel: tiles 0-3 are sums, 4 and 5 rows, 6 and 7 weights.
template <class T, class Dot, bool kTwo>
void amx_block(const TileCall& call, const std::byte* x, const std::byte* panel, std::size_t first_line,
               std::size_t last_line, float* out) {
  T::template zero<0>();
  T::template zero<1>();
  if constexpr (kTwo) {
    T::template zero<2>();
    T::template zero<3>();
  }
  const std::size_t tiles = call.steps / kStepsOfTile;
  for (std::size_t k = 0; k < tiles; ++k) {
    const std::size_t begin = first_line + (last_line - first_line) * k / tiles;
    const std::size_t end = first_line + (last_line - first_line) * (k + 1) / tiles;
    for (std::size_t line = begin; line < end; ++line) __builtin_prefetch(next_line(call, line), 0, 2);
    const std::byte* w = panel + k * kStepsOfTile * kStepBytes;
    T::template load<6>(w, kStepBytes);
    T::template load<7>(w + kTileBytes, kStepBytes);
    T::template load<4>(x + k * kTileBytes, call.stride);
    Dot::template add<0, 4, 6>();
    Dot::template add<1, 4, 7>();
    if constexpr (kTwo) {
      T::template load<5>(x + kTileRows * call.stride + k * kTileBytes, call.stride);
      Dot::template add<2, 5, 6>();
      Dot::template add<3, 5, 7>();
    }
  }
  constexpr std::size_t kRowBytes = kPanel * sizeof(float);
  T::template store<0>(out, kRowBytes);
  T::template store<1>(out + kTileRows, kRowBytes);
  if constexpr (kTwo) {
    T::template store<2>(out + kTileRows * kPanel, kRowBytes);
    T::template store<3>(out + kTileRows * kPanel + kTileRows, kRowBytes);
  }
}

template <class T, class Dot>
void amx_run(const TileCall& call) {
  T::configure();
  constexpr int kBlockRows = 2 * kTileRows;
  const int blocks = (call.rows + kBlockRows - 1) / kBlockRows;
  const std::size_t lines = call.next == nullptr ? 0 : call.next_bytes / kTileBytes;
  for (int p = 0; p < call.num_panels; ++p) {
    const std::byte* panel = call.panels + static_cast<std::size_t>(p) * call.steps * kStepBytes;
    for (int b = 0; b < blocks; ++b) {
      const int first = b * kBlockRows;
      const int rows = call.rows - first < kBlockRows ? call.rows - first : kBlockRows;
      const std::byte* x = call.x + static_cast<std::size_t>(first) * call.stride;
      float* out = call.out + static_cast<std::size_t>(p * call.rows + first) * kPanel;
      alignas(64) float whole[kBlockRows * kPanel];
      const bool partial = rows % kTileRows != 0;
      float* to = partial ? whole : out;
      const std::size_t begin = lines * static_cast<std::size_t>(b) / static_cast<std::size_t>(blocks);
      const std::size_t end = lines * static_cast<std::size_t>(b + 1) / static_cast<std::size_t>(blocks);
      if (rows > kTileRows) {
        amx_block<T, Dot, true>(call, x, panel, begin, end, to);
      } else {
        amx_block<T, Dot, false>(call, x, panel, begin, end, to);
      }
      if (partial) std::memcpy(out, whole, static_cast<std::size_t>(rows) * kPanel * sizeof(float));
    }
  }
}

inline int one_panel(int) { return 1; }

template <class T, class Dot>
Tiles amx_tiles_of(Operand operand) {
  return {operand, &one_panel, kTileRows, &amx_run<T, Dot>};
}

}  // namespace
}  // namespace grace::kernels
