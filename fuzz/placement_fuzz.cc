// Any bytes are a sound placement in some engine's format or one line of error; what can be written comes
// back.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "grace/base/check.h"
#include "grace/interop/exporter.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const grace::Result<grace::SlotMap> map = grace::parse_placement(bytes, "fuzz", {"", 2, 0, {}});
  if (!map.ok()) {
    GRACE_CHECK(map.error().message.find('\n') == std::string::npos, "an error is one line");
    return 0;
  }
  GRACE_CHECK(grace::violations(map.value()).empty(), "a placement that was read is sound");
  if (grace::has_empty_slots(map.value())) return 0;
  const grace::Exporter* vllm = grace::find_exporter("vllm").value();
  const auto written = vllm->write(map.value(), {});
  GRACE_CHECK(written.ok(), "a sound map can be written");
  const auto again = vllm->read(written.value().bytes, "again", map.value().num_devices);
  GRACE_CHECK(again.ok() && again.value().expert_of_slot == map.value().expert_of_slot, "and comes back");
  return 0;
}
