// Any bytes are a sound plan or one line of error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "grace/base/check.h"
#include "grace/plan/plan.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const grace::Result<grace::Plan> plan = grace::parse_plan(text, "fuzz");
  if (plan.ok()) {
    GRACE_CHECK(grace::violations(plan.value()).empty(), "a plan that was read is sound");
  } else {
    GRACE_CHECK(plan.error().message.find('\n') == std::string::npos, "an error is one line");
  }
  return 0;
}
