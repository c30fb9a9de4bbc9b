// The inner block of every matrix product: a few rows times a few panels, once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "grace/kernels/packed.h"

namespace grace::kernels {

// What a row of activations is turned into before it meets a panel.
enum class Operand : std::uint8_t {
  kF32,   // as it is, or rounded to bf16 where the instructions multiply f32 alone
  kBf16,  // pairs
  kU8,    // quantised, 128 added
};

inline constexpr std::size_t kStepBytes = 128;  // of a panel: one row of f32, two of bf16, four of int8

struct TileCall {
  const std::byte* x = nullptr;  // [rows] of the operand, `stride` bytes apart
  std::size_t stride = 0;
  int rows = 0;
  std::size_t steps = 0;  // of each panel
  const std::byte* panels = nullptr;
  int num_panels = 0;  // one behind the other
  // [num_panels][rows][kPanel]; 32-bit whole numbers for kU8
  float* out = nullptr;
  // What will be needed next is fetched meanwhile.
  const std::byte* next = nullptr;
  std::size_t next_bytes = 0;
};

// Every output element is one sum over the steps in ascending order, whatever rows and num_panels are: a
// row's bits never depend on its company. avx512 and avx2 agree in every bit.
using TileFunction = void (*)(const TileCall& call);

struct Tiles {
  Operand operand = Operand::kF32;
  // Panels to take at once for so many rows, so that few rows read memory in several streams.
  int (*panels_for)(int rows) = nullptr;
  // Operand rows are read in such multiples; those beyond `rows` may be anything.
  int row_multiple = 1;
  TileFunction run = nullptr;
};

// How `storage` is multiplied by these instructions.
const Tiles& tiles_for(Instructions instructions, Numbers numbers, Storage storage);

// One table for each instruction set; the functions are there where it can be built.
struct TileSet {
  Tiles f32_by_f32, f32_by_bf16, bf16_by_bf16, u8_by_int8;
};
const TileSet& portable_tiles();
const TileSet& avx2_tiles();
const TileSet& avx512_tiles();
const TileSet& avx512_bf16_tiles();
const TileSet& amx_tiles();
// amx_tiles by plain loops that do what the instructions do: for tests on processors without them.
const TileSet& emulated_amx_tiles();

}  // namespace grace::kernels
