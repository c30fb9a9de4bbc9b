// Any bytes as a config.json: refused in one line, or sizes within their bounds.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "grace/model/model.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto config = grace::parse_model_config({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (config.ok()) {
    GRACE_CHECK(config.value().experts_per_token <= config.value().num_experts, "more chosen than there are");
  } else {
    GRACE_CHECK(config.error().message.find('\n') == std::string::npos, "a message of several lines");
  }
  return 0;
}
