// Vectors: as many sums as hide a product's latency twice over, each product into the next of them. The sums
// are named registers inside one asm statement: a loop over an array of vectors would be spilled.
#include "grace/kernels/cpu/probe_loops.h"

#include <array>
#include <cstdint>

#if defined(__x86_64__)

namespace grace::kernels {
namespace {

// Factors of which every pair of bytes is a bf16 number of [1/2, 1), and every four an f32 one: neither sums
// that overflow nor zeros, which take less power than real work does.
struct alignas(64) Pattern {
  std::array<std::uint16_t, 32> values;
  constexpr Pattern() : values() {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<std::uint16_t>(0x3f00U | (i * 37 % 128) | (i % 4 == 1 ? 0x8000U : 0U));
  }
};
constexpr Pattern kPattern;

// A turn of the loops below.
constexpr int kWideSums = 24, kSums = 12;

__attribute__((target("avx512f"))) void fma_512(std::size_t turns) {
  __asm__ volatile(
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n\t"
      "vpxord %%zmm\\i, %%zmm\\i, %%zmm\\i\n\t"
      ".endr\n\t"
      "vmovups %1, %%zmm24\n\t"
      "vmovups %1, %%zmm25\n\t"
      ".p2align 5\n"
      "1:\n\t"
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n\t"
      "vfmadd231ps %%zmm24, %%zmm25, %%zmm\\i\n\t"
      ".endr\n\t"
      "decq %0\n\t"
      "jnz 1b\n\t"
      "vzeroupper"
      : "+r"(turns)
      : "m"(kPattern)
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21",
        "xmm22", "xmm23", "xmm24", "xmm25");
}

__attribute__((target("avx512f"))) void dpbf16_512(std::size_t turns) {
  __asm__ volatile(
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n\t"
      "vpxord %%zmm\\i, %%zmm\\i, %%zmm\\i\n\t"
      ".endr\n\t"
      "vmovups %1, %%zmm24\n\t"
      "vmovups %1, %%zmm25\n\t"
      ".p2align 5\n"
      "1:\n\t"
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n\t"
      "vdpbf16ps %%zmm24, %%zmm25, %%zmm\\i\n\t"
      ".endr\n\t"
      "decq %0\n\t"
      "jnz 1b\n\t"
      "vzeroupper"
      : "+r"(turns)
      : "m"(kPattern)
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21",
        "xmm22", "xmm23", "xmm24", "xmm25");
}

__attribute__((target("avx512f"))) void dpbusd_512(std::size_t turns) {
  __asm__ volatile(
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n\t"
      "vpxord %%zmm\\i, %%zmm\\i, %%zmm\\i\n\t"
      ".endr\n\t"
      "vmovups %1, %%zmm24\n\t"
      "vmovups %1, %%zmm25\n\t"
      ".p2align 5\n"
      "1:\n\t"
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n\t"
      "vpdpbusd %%zmm24, %%zmm25, %%zmm\\i\n\t"
      ".endr\n\t"
      "decq %0\n\t"
      "jnz 1b\n\t"
      "vzeroupper"
      : "+r"(turns)
      : "m"(kPattern)
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21",
        "xmm22", "xmm23", "xmm24", "xmm25");
}

// Bytes widened to 16 bits: what is exact without VNNI.
__attribute__((target("avx512f"))) void maddwd_512(std::size_t turns) {
  __asm__ volatile(
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11\n\t"
      "vpxord %%zmm\\i, %%zmm\\i, %%zmm\\i\n\t"
      ".endr\n\t"
      "vmovups %1, %%zmm24\n\t"
      "vmovups %1, %%zmm25\n\t"
      ".p2align 5\n"
      "1:\n\t"
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11\n\t"
      "vpmaddwd %%zmm24, %%zmm25, %%zmm16\n\t"
      "vpaddd %%zmm16, %%zmm\\i, %%zmm\\i\n\t"
      ".endr\n\t"
      "decq %0\n\t"
      "jnz 1b\n\t"
      "vzeroupper"
      : "+r"(turns)
      : "m"(kPattern)
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
        "xmm11", "xmm16", "xmm24", "xmm25");
}

__attribute__((target("avx2,fma"))) void fma_256(std::size_t turns) {
  __asm__ volatile(
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11\n\t"
      "vpxor %%ymm\\i, %%ymm\\i, %%ymm\\i\n\t"
      ".endr\n\t"
      "vmovups %1, %%ymm14\n\t"
      "vmovups %1, %%ymm15\n\t"
      ".p2align 5\n"
      "1:\n\t"
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11\n\t"
      "vfmadd231ps %%ymm14, %%ymm15, %%ymm\\i\n\t"
      ".endr\n\t"
      "decq %0\n\t"
      "jnz 1b\n\t"
      "vzeroupper"
      : "+r"(turns)
      : "m"(kPattern)
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
        "xmm11", "xmm14", "xmm15");
}

__attribute__((target("avx2"))) void maddwd_256(std::size_t turns) {
  __asm__ volatile(
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11\n\t"
      "vpxor %%ymm\\i, %%ymm\\i, %%ymm\\i\n\t"
      ".endr\n\t"
      "vmovups %1, %%ymm14\n\t"
      "vmovups %1, %%ymm15\n\t"
      ".p2align 5\n"
      "1:\n\t"
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11\n\t"
      "vpmaddwd %%ymm14, %%ymm15, %%ymm12\n\t"
      "vpaddd %%ymm12, %%ymm\\i, %%ymm\\i\n\t"
      ".endr\n\t"
      "decq %0\n\t"
      "jnz 1b\n\t"
      "vzeroupper"
      : "+r"(turns)
      : "m"(kPattern)
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
        "xmm11", "xmm12", "xmm14", "xmm15");
}

// What a compiler for any x86-64 has: no fused products.
void mul_add_128(std::size_t turns) {
  __asm__ volatile(
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11\n\t"
      "xorps %%xmm\\i, %%xmm\\i\n\t"
      ".endr\n\t"
      "movups %1, %%xmm14\n\t"
      "movups %1, %%xmm15\n\t"
      ".p2align 5\n"
      "1:\n\t"
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11\n\t"
      "movaps %%xmm14, %%xmm12\n\t"
      "mulps %%xmm15, %%xmm12\n\t"
      "addps %%xmm12, %%xmm\\i\n\t"
      ".endr\n\t"
      "decq %0\n\t"
      "jnz 1b"
      : "+r"(turns)
      : "m"(kPattern)
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
        "xmm11", "xmm12", "xmm14", "xmm15");
}

void maddwd_128(std::size_t turns) {
  __asm__ volatile(
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11\n\t"
      "pxor %%xmm\\i, %%xmm\\i\n\t"
      ".endr\n\t"
      "movups %1, %%xmm14\n\t"
      "movups %1, %%xmm15\n\t"
      ".p2align 5\n"
      "1:\n\t"
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11\n\t"
      "movdqa %%xmm14, %%xmm12\n\t"
      "pmaddwd %%xmm15, %%xmm12\n\t"
      "paddd %%xmm12, %%xmm\\i\n\t"
      ".endr\n\t"
      "decq %0\n\t"
      "jnz 1b"
      : "+r"(turns)
      : "m"(kPattern)
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
        "xmm11", "xmm12", "xmm14", "xmm15");
}

// Operations of a turn: two for each of `lanes` products into each of the sums.
constexpr double operations(int sums, int lanes) { return 2.0 * sums * lanes; }

constexpr ProductLoop kFma512{"vfmadd231ps, 512 bits", operations(kWideSums, 16), &fma_512};
constexpr ProductLoop kDpbf16{"vdpbf16ps", operations(kWideSums, 32), &dpbf16_512};
constexpr ProductLoop kDpbusd{"vpdpbusd", operations(kWideSums, 64), &dpbusd_512};
constexpr ProductLoop kMaddwd512{"vpmaddwd, 512 bits", operations(kSums, 32), &maddwd_512};
constexpr ProductLoop kFma256{"vfmadd231ps, 256 bits", operations(kSums, 8), &fma_256};
constexpr ProductLoop kMaddwd256{"vpmaddwd, 256 bits", operations(kSums, 16), &maddwd_256};
constexpr ProductLoop kMulAdd128{"mulps and addps", operations(kSums, 4), &mul_add_128};
constexpr ProductLoop kMaddwd128{"pmaddwd", operations(kSums, 8), &maddwd_128};

constexpr std::array kAvx512{kFma512};
// The dot product of bf16 is not on every processor faster than fused f32 products of widened numbers.
constexpr std::array kAvx512Bf16{kDpbf16, kFma512};
constexpr std::array kVnni{kDpbusd};
constexpr std::array kAvx512Int8{kMaddwd512};
constexpr std::array kAvx2{kFma256};
constexpr std::array kAvx2Int8{kMaddwd256};
constexpr std::array kPortable{kMulAdd128};
constexpr std::array kPortableInt8{kMaddwd128};

}  // namespace

std::span<const ProductLoop> amx_loops(Numbers numbers, Factors factors);

std::span<const ProductLoop> product_loops(Instructions instructions, Numbers numbers, Factors factors) {
  const bool whole = numbers == Numbers::kInt8;
  switch (instructions) {
    case Instructions::kAmx:
      if (numbers != Numbers::kF32) return amx_loops(numbers, factors);
      return kAvx512;
    case Instructions::kAvx512Bf16:
      if (numbers == Numbers::kBf16) return kAvx512Bf16;
      return whole ? kVnni : kAvx512;
    case Instructions::kAvx512:
      return whole ? kAvx512Int8 : kAvx512;
    case Instructions::kAvx2:
      return whole ? kAvx2Int8 : kAvx2;
    case Instructions::kPortable:
      break;
  }
  return whole ? kPortableInt8 : kPortable;
}

}  // namespace grace::kernels
#else

namespace grace::kernels {
namespace {

constexpr std::size_t kLoopSums = 64;

void multiply_add(std::size_t turns) {
  float sums[kLoopSums] = {};
  float factor = 0.75F;
  for (std::size_t turn = 0; turn < turns; ++turn) {
    __asm__ volatile("" : "+m"(factor));
    for (float& sum : sums) sum = sum * factor + factor;
  }
  __asm__ volatile("" : : "m"(sums));
}

constexpr std::array kAny{ProductLoop{"multiplication and addition", 2.0 * kLoopSums, &multiply_add}};

}  // namespace

std::span<const ProductLoop> product_loops(Instructions, Numbers, Factors) { return kAny; }

}  // namespace grace::kernels
#endif
