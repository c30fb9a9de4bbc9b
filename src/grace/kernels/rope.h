// Rotary position embeddings: pairs of dimensions turned by an angle that grows with the position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "grace/base/thread_pool.h"

namespace grace::kernels {

// Pair i is turned by position * frequencies[i]; sine and cosine are times amplitude.
struct RotaryTable {
  std::vector<float> frequencies;
  float amplitude = 1;
  bool interleaved = false;  // pairs (2i, 2i + 1); otherwise (i, i + pairs)
};

// theta^(-2i / dim), for even dim.
RotaryTable plain_rotary(int dim, double theta);

// YaRN (Peng et al., 2023): what turns less than beta_slow times in the original positions is slowed down by
// factor, what turns more than beta_fast times is left alone, and between them there is a ramp over the
// dimensions.
struct YarnScaling {
  double factor = 1;
  int original_positions = 0;
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;  // the ramp begins and ends at whole dimensions
};
RotaryTable yarn_rotary(int dim, double theta, const YarnScaling& scaling);

// The turns of a step's tokens, for all its layers and heads.
struct Rotations {
  std::vector<float> cosine, sine;  // [T, pairs]
  std::size_t pairs = 0;
  bool interleaved = false;
};
// Into `rotations`, whose memory is used again. positions: [T].
void turn_to(std::span<const std::int32_t> positions, const RotaryTable& table, Rotations& rotations);

// Turns the last 2 * pairs dimensions of each head in place. x: [T, heads, head_dim].
void rope(std::span<float> x, int heads, int head_dim, const Rotations& rotations, ThreadPool& pool);

namespace reference {
void rope(std::span<float> x, int heads, int head_dim, std::span<const std::int32_t> positions,
          const RotaryTable& table);
}  // namespace reference

}  // namespace grace::kernels
