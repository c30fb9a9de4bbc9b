#include "grace/comm/transport.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "grace/base/check.h"

namespace grace {
namespace {

void put(MessageBuffer& buffer, std::span<const std::byte> bytes) {
  buffer.clear();
  if (!bytes.empty()) std::memcpy(buffer.append(bytes.size()), bytes.data(), bytes.size());
}

}  // namespace

Transport::Transport(int size) : bytes_sent_to_(static_cast<std::size_t>(size), 0) {}

std::unique_ptr<Channel> Transport::open(std::vector<int> group, Reading reading) {
  return make_channel(std::move(group), reading, channels_++);
}

// What all ranks do together goes over one channel, so that a rank in another call is noticed.
Channel& Transport::everyone(comm::Call call) {
  if (everyone_ == nullptr) {
    std::vector<int> all(static_cast<std::size_t>(size()));
    std::iota(all.begin(), all.end(), 0);
    everyone_ = make_channel(std::move(all), Reading::kCopied, -1);
  }
  everyone_->call_ = call;
  return *everyone_;
}

Status Transport::all_to_all(std::span<const std::byte> send, std::span<const std::size_t> send_offsets,
                             std::vector<std::byte>& received, std::vector<std::size_t>& received_offsets) {
  const auto ranks = static_cast<std::size_t>(size());
  GRACE_CHECK(send_offsets.size() == ranks + 1, "one offset more than there are ranks");
  GRACE_CHECK(send_offsets.front() == 0 && send_offsets.back() == send.size(),
              "offsets run from 0 to the end");
  GRACE_CHECK(std::ranges::is_sorted(send_offsets), "offsets ascend");
  Channel& channel = everyone(comm::Call::kAllToAll);
  const auto part = [&](std::size_t r) {
    return send.subspan(send_offsets[r], send_offsets[r + 1] - send_offsets[r]);
  };
  const std::size_t me = channel.own();
  for (std::size_t r = 0; r < ranks; ++r)
    if (r != me) put(channel.outgoing(r), part(r));
  GRACE_TRY(channel.begin());
  GRACE_TRY(channel.finish());
  bytes_sent_to_[me] += static_cast<std::int64_t>(part(me).size());
  received_offsets.assign(1, 0);
  for (std::size_t r = 0; r < ranks; ++r)
    received_offsets.push_back(received_offsets.back() +
                               (r == me ? part(me).size() : channel.received(r).size()));
  received.resize(received_offsets.back());
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::span<const std::byte> from = r == me ? part(me) : channel.received(r);
    if (!from.empty()) std::memcpy(received.data() + received_offsets[r], from.data(), from.size());
  }
  return {};
}

Result<std::vector<std::vector<std::byte>>> Transport::all_gather(std::span<const std::byte> mine) {
  Channel& channel = everyone(comm::Call::kAllGather);
  const auto ranks = static_cast<std::size_t>(size());
  for (std::size_t r = 0; r < ranks; ++r)
    if (r != channel.own()) put(channel.outgoing(r), mine);
  GRACE_TRY(channel.begin());
  GRACE_TRY(channel.finish());
  std::vector<std::vector<std::byte>> all(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::span<const std::byte> from = r == channel.own() ? mine : channel.received(r);
    all[r].assign(from.begin(), from.end());
  }
  return all;
}

Status Transport::barrier() {
  Channel& channel = everyone(comm::Call::kBarrier);
  for (std::size_t r = 0; r < channel.group().size(); ++r) channel.outgoing(r).clear();
  GRACE_TRY(channel.begin());
  return channel.finish();
}

}  // namespace grace
