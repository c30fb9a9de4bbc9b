#include "grace/comm/transport.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "grace/base/check.h"

namespace grace {

Transport::Transport(int size)
    : bytes_sent_to_(static_cast<std::size_t>(size), 0), everyone_(static_cast<std::size_t>(size)) {
  std::iota(everyone_.begin(), everyone_.end(), 0);
}

void Transport::hand_over(std::span<const int> group, std::span<const std::byte> send,
                          std::span<const std::size_t> send_offsets) {
  GRACE_CHECK(std::ranges::find(group, rank()) != group.end(), "this rank is in the group");
  GRACE_CHECK(group.front() >= 0 && group.back() < size() &&
                  std::ranges::adjacent_find(group, std::greater_equal()) == group.end(),
              "a group ascends within [0, size)");
  GRACE_CHECK(send_offsets.size() == group.size() + 1, "one offset more than the group has ranks");
  GRACE_CHECK(send_offsets.front() == 0 && send_offsets.back() == send.size(),
              "offsets run from 0 to the end");
  for (std::size_t i = 0; i < group.size(); ++i) {
    GRACE_CHECK(send_offsets[i] <= send_offsets[i + 1], "offsets ascend");
    bytes_sent_to_[static_cast<std::size_t>(group[i])] +=
        static_cast<std::int64_t>(send_offsets[i + 1] - send_offsets[i]);
  }
}

}  // namespace grace
