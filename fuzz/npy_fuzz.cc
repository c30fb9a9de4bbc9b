// Any bytes as a .npy or .npz file: refused, or every element can be put in order.
#include <cstddef>
#include <cstdint>
#include <span>

#include "grace/files/npy.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  if (const auto array = grace::parse_npy(bytes, "fuzz"); array.ok())
    (void)grace::row_major_bytes(array.value()).size();
  if (const auto arrays = grace::parse_npz(bytes, "fuzz"); arrays.ok())
    for (const auto& [name, array] : arrays.value().arrays) (void)grace::row_major_bytes(array).size();
  return 0;
}
