#include "grace/kernels/cpu/lanes_portable.h"
#include "grace/kernels/cpu/tile.h"
#include "grace/kernels/cpu/vector_functions.h"

namespace grace::kernels {
namespace {

#include "grace/kernels/cpu/attention_body.inc"
#include "grace/kernels/cpu/block_body.inc"
#include "grace/kernels/cpu/vector_body.inc"

int one_panel(int) { return 1; }

// Whole numbers: the same sums in any order.
void run_u8(const TileCall& call) {
  for (int p = 0; p < call.num_panels; ++p) {
    const std::byte* panel = call.panels + static_cast<std::size_t>(p) * call.steps * kStepBytes;
    for (int r = 0; r < call.rows; ++r) {
      const auto* x =
          reinterpret_cast<const std::uint8_t*>(call.x) + static_cast<std::size_t>(r) * call.stride;
      std::int32_t sums[kPanel] = {};
      for (std::size_t s = 0; s < call.steps; ++s) {
        const auto* w = reinterpret_cast<const std::int8_t*>(panel) + s * kStepBytes;
        for (int c = 0; c < kPanel; ++c)
          for (int i = 0; i < 4; ++i)
            sums[c] += std::int32_t{x[4 * s + static_cast<std::size_t>(i)]} * w[4 * c + i];
      }
      std::memcpy(call.out + static_cast<std::size_t>(p * call.rows + r) * kPanel, sums, sizeof sums);
    }
  }
}

}  // namespace

const TileSet& portable_tiles() {
  static constexpr TileSet kSet{tiles_of<F32ByF32<PortableLanes>>(Operand::kF32),
                                tiles_of<F32ByBf16<PortableLanes>>(Operand::kF32),
                                {},
                                {Operand::kU8, &one_panel, 1, &run_u8}};
  return kSet;
}

const VectorFunctions& portable_functions() {
  static constexpr VectorFunctions kFunctions = functions_of<PortableLanes>();
  return kFunctions;
}

}  // namespace grace::kernels
