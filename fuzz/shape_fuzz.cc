// Any bytes as a config.json of whatever family: refused in one line, or sizes whose costs are finite.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "grace/base/check.h"
#include "grace/model/shape.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto shape = grace::parse_shape({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (shape.ok()) {
    GRACE_CHECK(shape.value().experts_per_token <= shape.value().num_experts, "more chosen than there are");
    GRACE_CHECK(std::isfinite(grace::total_parameters(shape.value())), "no number of parameters");
    GRACE_CHECK(std::isfinite(grace::attention_cost(shape.value(), grace::Pass::kDecode, 1e6).flops),
                "no cost");
  } else {
    GRACE_CHECK(shape.error().message.find('\n') == std::string::npos, "a message of several lines");
  }
  return 0;
}
