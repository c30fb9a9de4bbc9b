// Rotary position embeddings.
#pragma once

#include <cstdint>
#include <span>

namespace grace::kernels {

// Rotates heads in place: x [T, heads, head_dim], rotate-half pairing (i, i + head_dim/2), angle position *
// theta^(-2i/head_dim). positions: [T].
void rope(std::span<float> x, int heads, int head_dim, std::span<const std::int32_t> positions, double theta);

namespace reference {
void rope(std::span<float> x, int heads, int head_dim, std::span<const std::int32_t> positions, double theta);
}  // namespace reference

}  // namespace grace::kernels
