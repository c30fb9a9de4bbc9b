#include "grace/comm/transport.h"

#include "grace/base/check.h"

namespace grace {

void Transport::hand_over(std::span<const std::byte> send, std::span<const std::size_t> send_offsets) {
  GRACE_CHECK(send_offsets.size() == bytes_sent_to_.size() + 1, "all_to_all needs size + 1 offsets");
  GRACE_CHECK(send_offsets.front() == 0 && send_offsets.back() == send.size(),
              "offsets run from 0 to the end");
  for (std::size_t to = 0; to < bytes_sent_to_.size(); ++to) {
    GRACE_CHECK(send_offsets[to] <= send_offsets[to + 1], "offsets ascend");
    bytes_sent_to_[to] += static_cast<std::int64_t>(send_offsets[to + 1] - send_offsets[to]);
  }
}

}  // namespace grace
