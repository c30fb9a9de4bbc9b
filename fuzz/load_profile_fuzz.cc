// Any bytes are a sound load profile or one line of error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "grace/affinity/load_profile.h"
#include "grace/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const grace::Result<grace::LoadProfile> profile = grace::parse_load_profile(text, "fuzz");
  if (profile.ok()) {
    GRACE_CHECK(grace::violations(profile.value()).empty(), "a profile that was read is sound");
  } else {
    GRACE_CHECK(profile.error().message.find('\n') == std::string::npos, "an error is one line");
  }
  return 0;
}
