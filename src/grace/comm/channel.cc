#include "grace/comm/channel.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>
#include <utility>

#include "grace/base/check.h"

namespace grace {
namespace {

constexpr std::size_t kFewest = 4096;
constexpr std::align_val_t kAlignment{64};

}  // namespace

void MessageBuffer::make_room(std::size_t bytes) {
  grow(std::max({bytes, 2 * capacity_, kFewest}));
  GRACE_CHECK(capacity_ >= bytes, "a buffer that did not grow");
}

OwnBuffer::~OwnBuffer() {
  if (data_ != nullptr) ::operator delete(data_ - kRoomBefore, kAlignment);
}

void OwnBuffer::grow(std::size_t capacity) {
  auto* memory = static_cast<std::byte*>(::operator new(kRoomBefore + capacity, kAlignment)) + kRoomBefore;
  if (data_ != nullptr) {
    std::memcpy(memory - kRoomBefore, data_ - kRoomBefore, kRoomBefore + size_);
    ::operator delete(data_ - kRoomBefore, kAlignment);
  }
  data_ = memory;
  capacity_ = capacity;
}

Channel::Channel(std::vector<int> group, int rank, std::vector<std::int64_t>& bytes_sent_to)
    : outgoing_(group.size()),
      received_(group.size()),
      group_(std::move(group)),
      bytes_sent_to_(bytes_sent_to) {
  const auto own = std::ranges::find(group_, rank);
  GRACE_CHECK(own != group_.end(), "this rank is in the group");
  GRACE_CHECK(group_.front() >= 0 && static_cast<std::size_t>(group_.back()) < bytes_sent_to.size() &&
                  std::ranges::adjacent_find(group_, std::greater_equal()) == group_.end(),
              "a group ascends within [0, size)");
  own_ = static_cast<std::size_t>(own - group_.begin());
}

Status Channel::begin() {
  GRACE_CHECK(outgoing_[own_]->size() == 0, "nothing travels to the own rank");
  if (call_ == comm::Call::kAllToAll)
    for (std::size_t i = 0; i < group_.size(); ++i)
      bytes_sent_to_[static_cast<std::size_t>(group_[i])] += static_cast<std::int64_t>(outgoing_[i]->size());
  return send();
}

}  // namespace grace
