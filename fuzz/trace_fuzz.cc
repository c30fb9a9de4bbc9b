// Any bytes are a sound trace or one line of error.
#include <cstddef>
#include <cstdint>
#include <span>

#include "grace/base/check.h"
#include "grace/trace/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const grace::Result<grace::Trace> trace = grace::parse_trace(std::as_bytes(std::span(data, size)), "fuzz");
  if (trace.ok()) {
    GRACE_CHECK(grace::violations(trace.value()).empty(), "a trace that was read is sound");
  } else {
    GRACE_CHECK(trace.error().message.find('\n') == std::string::npos, "an error is one line");
  }
  return 0;
}
