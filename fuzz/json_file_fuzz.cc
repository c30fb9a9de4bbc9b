// Any bytes as JSON: refused, or written and read back the same.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "grace/files/json_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto json = grace::parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!json.ok()) return 0;
  const auto again = grace::parse_json(json.value().dump(), "fuzz");
  GRACE_CHECK(again.ok() && again.value() == json.value(), "written and read back, it is another value");
  return 0;
}
