// Any bytes as a line of Megatron's routing trace: refused, or as many ids as it says.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "grace/interop/import/megatron_line.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  grace::MegatronLine line;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (!grace::parse_megatron_line(text, "fuzz", line).ok()) return 0;
  if (static_cast<std::int64_t>(line.ids.size()) != line.num_tokens * (line.num_tokens > 0 ? line.topk : 0))
    std::abort();
  return 0;
}
