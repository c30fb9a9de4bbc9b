// What the kernels run on and what they calculate with. Both are chosen once, when weights are packed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "grace/base/result.h"

namespace grace::kernels {

// Instruction sets, best first. A lower one never uses an instruction of a higher one.
enum class Instructions : std::uint8_t { kAmx, kAvx512Bf16, kAvx512, kAvx2, kPortable };
std::string_view name_of(Instructions instructions);  // "amx", "avx512-bf16", "avx512", "avx2", "portable"

// Those that this processor and system have, best first; never empty. AMX is asked of the system here.
std::span<const Instructions> usable_instructions();
// `auto` or empty: the best. Errors: invalid_input for no such name; unsupported where the processor lacks
// it.
Result<Instructions> find_instructions(std::string_view name);

// What a product's factors are rounded to; sums are f32 (whole numbers for kInt8). kF32: nothing is rounded.
// kBf16: weights and the vectors they meet. kInt8: weights with a scale for each output, vectors with one
// each; routers, embeddings and norms stay as they are in the file.
enum class Numbers : std::uint8_t { kF32, kBf16, kInt8 };
std::string_view name_of(Numbers numbers);  // "f32", "bf16", "int8"
Result<Numbers> find_numbers(std::string_view name);

struct Arithmetic {
  Instructions instructions = usable_instructions().front();
  Numbers numbers = Numbers::kF32;
};

}  // namespace grace::kernels
