#include "grace/comm/transport_checks.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "grace/base/rng.h"

namespace grace::comm {
namespace {

using Bytes = std::vector<std::byte>;

// What `from` sends to `to` in round `round`: known to both ends, so that every byte can be compared.
Bytes content(int from, int to, int round, std::size_t bytes) {
  Rng rng = Rng(static_cast<std::uint64_t>(round) + 1)
                .fork(static_cast<std::uint64_t>(from) * 1000 + static_cast<std::uint64_t>(to));
  Bytes out(bytes);
  for (std::size_t i = 0; i < bytes; i += sizeof(std::uint64_t)) {
    const std::uint64_t word = rng.next();
    std::memcpy(out.data() + i, &word, std::min(sizeof word, bytes - i));
  }
  return out;
}

Error differs(const Transport& t, std::string_view call, int round, int from) {
  return internal_error("rank " + std::to_string(t.rank()) + ": " + std::string(call) + " of round " +
                        std::to_string(round) + " brought other bytes from rank " + std::to_string(from));
}

// What the rounds send from rank to rank: nothing, one byte, a prime, uneven with empty pairs, from one rank
// only, and to neighbours more than any transport's chunk.
std::size_t bytes_of(int from, int to, int round) {
  switch (round % 6) {
    case 0:
      return 0;
    case 1:
      return 1;
    case 2:
      return 1009;
    case 3:
      return (from + to) % 3 == 0 ? 0 : static_cast<std::size_t>(7 * from + 13 * to + 1);
    case 4:
      return from == 0 ? 65537 : 0;
    default:
      return from - to == 1 || to - from == 1 ? (std::size_t{1} << 21) + 17 : 3;
  }
}

// By all_to_all.
Status check_all_to_all(Transport& t, int round, Bytes& received,
                        std::vector<std::size_t>& received_offsets) {
  Bytes send;
  std::vector<std::size_t> offsets{0};
  for (int to = 0; to < t.size(); ++to) {
    const Bytes part = content(t.rank(), to, round, bytes_of(t.rank(), to, round));
    send.insert(send.end(), part.begin(), part.end());
    offsets.push_back(send.size());
  }
  const std::vector<std::int64_t> before = t.bytes_sent_to();
  GRACE_TRY(t.all_to_all(send, offsets, received, received_offsets));
  if (received_offsets.size() != offsets.size() || received_offsets.back() != received.size())
    return internal_error("all_to_all: offsets do not fit what was received");
  for (int peer = 0; peer < t.size(); ++peer) {
    const auto p = static_cast<std::size_t>(peer);
    const Bytes want = content(peer, t.rank(), round, bytes_of(peer, t.rank(), round));
    const std::span<const std::byte> got =
        std::span(received).subspan(received_offsets[p], received_offsets[p + 1] - received_offsets[p]);
    if (!std::ranges::equal(got, want)) return differs(t, "all_to_all", round, peer);
    if (t.bytes_sent_to()[p] - before[p] != static_cast<std::int64_t>(offsets[p + 1] - offsets[p]))
      return internal_error("all_to_all: bytes_sent_to does not count what was sent");
  }
  return {};
}

// Two kinds of bytes in each round, so that channels of the same ranks cannot be mistaken for one another.
Status fill(Transport& t, Channel& channel, int round) {
  for (std::size_t i = 0; i < channel.group().size(); ++i) {
    MessageBuffer& buffer = channel.outgoing(i);
    buffer.clear();
    if (i == channel.own()) continue;
    const int to = channel.group()[i];
    // In pieces, as messages are packed.
    const Bytes part = content(t.rank(), to, round, bytes_of(t.rank(), to, round % 6));
    for (std::size_t at = 0; at < part.size(); at += 1000) {
      const std::size_t piece = std::min<std::size_t>(1000, part.size() - at);
      std::memcpy(buffer.append(piece), part.data() + at, piece);
    }
  }
  return channel.begin();
}

Status compare(Transport& t, Channel& channel, int round) {
  for (std::size_t i = 0; i < channel.group().size(); ++i) {
    const int peer = channel.group()[i];
    if (!channel.has_come(i)) return internal_error("a channel has ended, but a message has not come");
    const std::span<const std::byte> got = channel.received(i);
    if (reinterpret_cast<std::uintptr_t>(got.data()) % 64 != 0)
      return internal_error("a message that does not begin at a multiple of 64");
    const Bytes want =
        i == channel.own() ? Bytes() : content(peer, t.rank(), round, bytes_of(peer, t.rank(), round % 6));
    if (!std::ranges::equal(got, want)) return differs(t, "a channel", round, peer);
  }
  return {};
}

using Channels = std::vector<std::unique_ptr<Channel>>;

// Among odd and even ranks, neighbours (of an odd number the last is alone), one alone, and all; read in
// place and copied.
Channels open_channels(Transport& t) {
  std::vector<int> alike, neighbours = {t.rank() / 2 * 2}, all;
  for (int r = t.rank() % 2; r < t.size(); r += 2) alike.push_back(r);
  if (neighbours[0] + 1 < t.size()) neighbours.push_back(neighbours[0] + 1);
  for (int r = 0; r < t.size(); ++r) all.push_back(r);
  Channels channels;
  for (const Reading reading : {Reading::kCopied, Reading::kInPlace})
    for (const std::vector<int>& group : {alike, neighbours, {t.rank()}, all})
      channels.push_back(t.open(group, reading));
  return channels;
}

// All under way at once, begun in one order on even ranks and in the other on odd ones.
Status check_channels(Transport& t, Channels& channels, int round) {
  const auto in_order = [&](const auto& body) -> Status {
    for (std::size_t n = 0; n < channels.size(); ++n) {
      const std::size_t at = t.rank() % 2 == 0 ? n : channels.size() - 1 - n;
      GRACE_TRY(body(*channels[at], 6 * static_cast<int>(at) + round));
    }
    return {};
  };
  const std::vector<std::int64_t> before = t.bytes_sent_to();
  GRACE_TRY(in_order([&](Channel& channel, int number) { return fill(t, channel, number); }));
  for (int looks = 0; looks < 3; ++looks)
    for (const auto& channel : channels) GRACE_TRY(channel->poll());
  GRACE_TRY(in_order([&](Channel& channel, int) { return channel.finish(); }));
  GRACE_TRY(in_order([&](Channel& channel, int number) { return compare(t, channel, number); }));
  std::vector<std::int64_t> sent(static_cast<std::size_t>(t.size()), 0);
  for (const auto& channel : channels)
    for (std::size_t i = 0; i < channel->group().size(); ++i)
      sent[static_cast<std::size_t>(channel->group()[i])] +=
          static_cast<std::int64_t>(channel->outgoing(i).size());
  for (std::size_t r = 0; r < sent.size(); ++r)
    if (t.bytes_sent_to()[r] - before[r] != sent[r])
      return internal_error("a channel: bytes_sent_to does not count what was sent");
  return t.barrier();  // all are through with what they read in place
}

Status check_all_gather(Transport& t, int round) {
  const std::vector<std::int64_t> before = t.bytes_sent_to();
  const Bytes mine = content(t.rank(), t.rank(), round, bytes_of(t.rank(), 1, round));
  const std::vector<Bytes> all = GRACE_TRY(t.all_gather(mine));
  if (all.size() != static_cast<std::size_t>(t.size()))
    return internal_error("all_gather: not one part a rank");
  for (int from = 0; from < t.size(); ++from)
    if (all[static_cast<std::size_t>(from)] != content(from, from, round, bytes_of(from, 1, round)))
      return differs(t, "all_gather", round, from);
  if (t.bytes_sent_to() != before) return internal_error("all_gather: counted in bytes_sent_to");
  return {};
}

}  // namespace

Status check_exchanges(Transport& transport) {
  // Not fresh in each round: a transport must not lean on what the buffers held before.
  Bytes received(5);
  std::vector<std::size_t> received_offsets(99, 7);
  Channels channels = open_channels(transport);
  for (int round = 0; round < 12; ++round) {
    GRACE_TRY(check_all_to_all(transport, round, received, received_offsets));
    GRACE_TRY(check_channels(transport, channels, round));
    if (round % 3 == 0) GRACE_TRY(transport.barrier());
    if (round % 2 == 0) GRACE_TRY(check_all_gather(transport, round));
  }
  return {};
}

}  // namespace grace::comm
