// Tiles: four sums of 16 by 16, two tiles of rows and two of weights, as amx_body.h has them.
#include <array>
#include <cstddef>
#include <cstdint>

#include "grace/kernels/cpu/amx_config.h"
#include "grace/kernels/cpu/probe_loops.h"

#if defined(__x86_64__)

namespace grace::kernels {
namespace {

// Eight tiles of rows and eight of weights, two of each for a step: 16 KiB.
constexpr std::size_t kTile = 1024, kSteps = 4;
struct alignas(64) Operands {
  std::array<std::uint16_t, 4 * kSteps * kTile / 2> values;
  Operands() {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<std::uint16_t>(0x3f00U | (i * 37 % 128) | (i % 4 == 1 ? 0x8000U : 0U));
  }
};

const Operands& operands() {
  static const Operands kOperands;
  return kOperands;
}

// The configuration is the thread's and the same as the kernels', so that it may stay.
const std::byte* begin() {
  const TileConfig config;
  const std::byte* from = std::as_bytes(std::span(operands().values)).data();
  constexpr std::size_t kStride = 64;
  __asm__ volatile(
      "ldtilecfg %0\n\t"
      "tilezero %%tmm0\n\t"
      "tilezero %%tmm1\n\t"
      "tilezero %%tmm2\n\t"
      "tilezero %%tmm3\n\t"
      "tileloadd (%1,%2,1), %%tmm4\n\t"
      "tileloadd (%1,%2,1), %%tmm5\n\t"
      "tileloadd (%1,%2,1), %%tmm6\n\t"
      "tileloadd (%1,%2,1), %%tmm7"
      :
      : "m"(config), "r"(from), "r"(kStride)
      : "memory");
  return from;
}

void bf16_in_registers(std::size_t turns) {
  begin();
  __asm__ volatile(
      ".p2align 5\n"
      "1:\n\t"
      ".rept 4\n\t"
      "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\t"
      "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t"
      "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n\t"
      "tdpbf16ps %%tmm7, %%tmm5, %%tmm3\n\t"
      ".endr\n\t"
      "decq %0\n\t"
      "jnz 1b"
      : "+r"(turns)
      :
      : "cc");
}

void int8_in_registers(std::size_t turns) {
  begin();
  __asm__ volatile(
      ".p2align 5\n"
      "1:\n\t"
      ".rept 4\n\t"
      "tdpbusd %%tmm6, %%tmm4, %%tmm0\n\t"
      "tdpbusd %%tmm7, %%tmm4, %%tmm1\n\t"
      "tdpbusd %%tmm6, %%tmm5, %%tmm2\n\t"
      "tdpbusd %%tmm7, %%tmm5, %%tmm3\n\t"
      ".endr\n\t"
      "decq %0\n\t"
      "jnz 1b"
      : "+r"(turns)
      :
      : "cc");
}

void bf16_loaded(std::size_t turns) {
  const std::byte* from = begin();
  constexpr std::size_t kStride = 64;
  __asm__ volatile(
      ".p2align 5\n"
      "1:\n\t"
      ".irp at,0,4096,8192,12288\n\t"
      "tileloadd \\at(%1,%2,1), %%tmm6\n\t"
      "tileloadd \\at+1024(%1,%2,1), %%tmm7\n\t"
      "tileloadd \\at+2048(%1,%2,1), %%tmm4\n\t"
      "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\t"
      "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t"
      "tileloadd \\at+3072(%1,%2,1), %%tmm5\n\t"
      "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n\t"
      "tdpbf16ps %%tmm7, %%tmm5, %%tmm3\n\t"
      ".endr\n\t"
      "decq %0\n\t"
      "jnz 1b"
      : "+r"(turns)
      : "r"(from), "r"(kStride)
      : "cc", "memory");
}

void int8_loaded(std::size_t turns) {
  const std::byte* from = begin();
  constexpr std::size_t kStride = 64;
  __asm__ volatile(
      ".p2align 5\n"
      "1:\n\t"
      ".irp at,0,4096,8192,12288\n\t"
      "tileloadd \\at(%1,%2,1), %%tmm6\n\t"
      "tileloadd \\at+1024(%1,%2,1), %%tmm7\n\t"
      "tileloadd \\at+2048(%1,%2,1), %%tmm4\n\t"
      "tdpbusd %%tmm6, %%tmm4, %%tmm0\n\t"
      "tdpbusd %%tmm7, %%tmm4, %%tmm1\n\t"
      "tileloadd \\at+3072(%1,%2,1), %%tmm5\n\t"
      "tdpbusd %%tmm6, %%tmm5, %%tmm2\n\t"
      "tdpbusd %%tmm7, %%tmm5, %%tmm3\n\t"
      ".endr\n\t"
      "decq %0\n\t"
      "jnz 1b"
      : "+r"(turns)
      : "r"(from), "r"(kStride)
      : "cc", "memory");
}

// Four steps of four products, of 16 x 16 sums over 32 or 64 numbers each.
constexpr double kBf16Operations = 2.0 * kSteps * 4 * 16 * 16 * 32, kInt8Operations = 2 * kBf16Operations;

constexpr std::array kBf16InRegisters{
    ProductLoop{"tdpbf16ps, in registers", kBf16Operations, &bf16_in_registers}};
constexpr std::array kInt8InRegisters{
    ProductLoop{"tdpbusd, in registers", kInt8Operations, &int8_in_registers}};
constexpr std::array kBf16Loaded{ProductLoop{"tdpbf16ps with loads", kBf16Operations, &bf16_loaded}};
constexpr std::array kInt8Loaded{ProductLoop{"tdpbusd with loads", kInt8Operations, &int8_loaded}};

}  // namespace

std::span<const ProductLoop> amx_loops(Numbers numbers, Factors factors) {
  if (numbers == Numbers::kInt8) {
    if (factors == Factors::kLoaded) return kInt8Loaded;
    return kInt8InRegisters;
  }
  if (factors == Factors::kLoaded) return kBf16Loaded;
  return kBf16InRegisters;
}

}  // namespace grace::kernels
#endif
