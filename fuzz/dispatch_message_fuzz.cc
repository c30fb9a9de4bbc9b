// Whatever bytes another rank sends, they are read or refused.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "grace/runtime/messages.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> message(size);
  if (size > 0) std::memcpy(message.data(), data, size);
  std::vector<grace::IncomingAssignment> assignments;
  const grace::Status status = grace::unpack_dispatch(message, 0, 2, 6, assignments);
  volatile float sink = 0;
  if (status.ok()) {
    for (const grace::IncomingAssignment& a : assignments) sink = sink + a.x[0] + a.x[1];
  }
  return 0;
}
