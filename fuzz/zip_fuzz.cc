// Any bytes as a zip archive: refused, or every member can be taken out or is refused.
#include <cstddef>
#include <cstdint>
#include <span>

#include "grace/files/zip.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto entries = grace::parse_zip(std::as_bytes(std::span(data, size)), "fuzz");
  if (!entries.ok()) return 0;
  for (const grace::ZipEntry& entry : entries.value()) (void)grace::inflate(entry, "fuzz").ok();
  return 0;
}
