// What is done to vectors of f32 beside products, once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "grace/kernels/attention.h"
#include "grace/kernels/instructions.h"

namespace grace::kernels {

// Rows (token, head) of one sequence that share a kv head, against its cached keys and values. A chunk of
// keys at a time: scores, running maximum and sum, weighted values. Chunks begin at multiples of kCacheBlock,
// so that a row's bits depend on what it sees alone.
struct AttendCall {
  int rows = 0;
  const float* const* q = nullptr;  // [rows] -> [key_dim]
  float* const* out = nullptr;      // [rows] -> [value_dim]
  const int* first_key = nullptr;   // [rows] the row sees keys [first_key, last_key)
  const int* last_key = nullptr;
  int first = 0, last = 0;  // keys that any of the rows sees
  // Block b's row i begins at keys[b] + (i * key_row) * bytes of a value; bf16 is widened into scratch.
  const std::byte* const* keys = nullptr;
  const std::byte* const* values = nullptr;
  int key_row = 0, value_row = 0;
  int key_offset = 0, value_offset = 0;  // of the head, in values
  int key_dim = 0, value_dim = 0;
  bool bf16 = false;
  float scale = 0;
  float* scratch = nullptr;  // attend_scratch() floats, on a cache line's boundary
};

// Dimensions padded to this many values are whole vectors everywhere.
inline constexpr int kWidestLanes = 16;
std::size_t attend_scratch(int rows, int key_dim, int value_dim);

struct VectorFunctions {
  // sums: [32], sixteen of the gate and sixteen of up -> out [16] = silu(gate) * up.
  void (*silu_times_up)(const float* sums, float* out) = nullptr;
  void (*attend)(const AttendCall& call) = nullptr;
};

const VectorFunctions& functions_for(Instructions instructions);
const VectorFunctions& portable_functions();
const VectorFunctions& avx2_functions();
const VectorFunctions& avx512_functions();

}  // namespace grace::kernels
