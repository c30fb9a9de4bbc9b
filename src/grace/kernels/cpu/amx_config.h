// How the tiles of AMX are laid out, by kernels and probes alike, so that a thread is set up once for both.
#pragma once

#include <cstdint>

namespace grace::kernels {

// Palette 1, all eight tiles of 16 rows by 64 bytes (Intel SDM, LDTILECFG).
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t bytes_of_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

}  // namespace grace::kernels
