// llama.cpp's GGUF files: metadata and tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "grace/base/result.h"
#include "grace/files/safetensors.h"

namespace grace {

// Lists, which imatrix and vocabulary files have, are checked and left out.
using GgufValue = std::variant<std::int64_t, double, bool, std::string>;

struct GgufContent {
  std::map<std::string, GgufValue, std::less<>> metadata;
  TensorMap tensors;  // f32, f16, bf16, f64 and whole numbers; outermost dimension first, as numpy has it
  std::vector<std::string> quantised;  // names of tensors of other types, which are left out
};

// Reads the bytes of a whole file, versions 2 and 3; `place` stands for the path in messages; views point
// into the bytes. Errors: invalid_input for what is cut short, lies about a length, names a key or a tensor
// twice, or has tensors that reach over the file.
Result<GgufContent> parse_gguf(std::span<const std::byte> file, std::string_view place);

}  // namespace grace
