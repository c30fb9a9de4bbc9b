#include "grace/kernels/cpu/amx_body.h"
#include "grace/kernels/cpu/amx_config.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace grace::kernels {
namespace {

// The compiler knows tiles only by their numbers, so that each is spelled by the instruction itself.
struct HardwareTiles {
  static void configure() {
    static thread_local bool done = false;
    if (done) return;
    const TileConfig config;
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
    done = true;
  }
  template <int t>
  static void zero() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(t));
  }
  template <int t>
  static void load(const std::byte* from, std::size_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(t) : "memory");
  }
  template <int t>
  static void store(float* to, std::size_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(t) : "memory");
  }
};
struct HardwareBf16 {
  template <int c, int a, int b>
  static void add() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b));
  }
};
struct HardwareU8 {
  template <int c, int a, int b>
  static void add() {
    __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b));
  }
};

}  // namespace

const TileSet& amx_tiles() {
  static const TileSet kSet{avx512_tiles().f32_by_f32, avx512_tiles().f32_by_bf16,
                            amx_tiles_of<HardwareTiles, HardwareBf16>(Operand::kBf16),
                            amx_tiles_of<HardwareTiles, HardwareU8>(Operand::kU8)};
  return kSet;
}

}  // namespace grace::kernels
#else
namespace grace::kernels {
const TileSet& amx_tiles() { return portable_tiles(); }
}  // namespace grace::kernels
#endif
