// Any bytes as a safetensors file: refused, or every tensor can be read.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "grace/files/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto content = grace::parse_safetensors(std::as_bytes(std::span(data, size)), "fuzz");
  if (!content.ok()) return 0;
  for (const auto& [name, tensor] : content.value().tensors) {
    std::vector<float> out(static_cast<std::size_t>(tensor.num_elements()));
    (void)grace::read_as_f32(tensor, name, 0, tensor.num_elements(), out).ok();
  }
  return 0;
}
