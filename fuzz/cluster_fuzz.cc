// Any bytes are a sound cluster or one line of error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "grace/base/check.h"
#include "grace/cluster/cluster.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const grace::Result<grace::Cluster> cluster = grace::parse_cluster_file(text, "fuzz");
  if (cluster.ok()) {
    GRACE_CHECK(grace::violations(cluster.value()).empty(), "a cluster that was read is sound");
  } else {
    GRACE_CHECK(cluster.error().message.find('\n') == std::string::npos, "an error is one line");
  }
  return 0;
}
