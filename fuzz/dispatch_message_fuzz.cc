// Whatever bytes another rank sends, they are read or refused.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "grace/runtime/messages.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> message(size);
  if (size > 0) std::memcpy(message.data(), data, size);
  volatile float sink = 0;
  for (const grace::Combine combine : {grace::Combine::kExact, grace::Combine::kReduced})
    for (const grace::Wire wire : {grace::Wire::kF32, grace::Wire::kBf16}) {
      grace::ParcelList parcels;
      if (!grace::read_parcels({2, 6, combine, wire}, message, 0, parcels).ok()) continue;
      for (std::size_t i = 0; i < parcels.size(); ++i)
        sink = sink + parcels[i].x[0] + parcels[i].x[1] + parcels[i].assignments.back().weight;
    }
  return 0;
}
