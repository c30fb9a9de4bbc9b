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

// Among the group's ranks, or, without a group, by all_to_all.
Status check_all_to_all(Transport& t, std::span<const int> group, int round, Bytes& received,
                        std::vector<std::size_t>& received_offsets) {
  const bool is_everyone = group.empty();
  std::vector<int> ranks(group.begin(), group.end());
  if (is_everyone)
    for (int r = 0; r < t.size(); ++r) ranks.push_back(r);
  Bytes send;
  std::vector<std::size_t> offsets{0};
  for (const int to : ranks) {
    const Bytes part = content(t.rank(), to, round, bytes_of(t.rank(), to, round));
    send.insert(send.end(), part.begin(), part.end());
    offsets.push_back(send.size());
  }
  const std::vector<std::int64_t> before = t.bytes_sent_to();
  GRACE_TRY(is_everyone ? t.all_to_all(send, offsets, received, received_offsets)
                        : t.all_to_all_among(group, send, offsets, received, received_offsets));
  if (received_offsets.size() != ranks.size() + 1 || received_offsets.back() != received.size())
    return internal_error("all_to_all: offsets do not fit what was received");
  for (std::size_t p = 0; p < ranks.size(); ++p) {
    const int peer = ranks[p];
    const Bytes want = content(peer, t.rank(), round, bytes_of(peer, t.rank(), round));
    const std::span<const std::byte> got =
        std::span(received).subspan(received_offsets[p], received_offsets[p + 1] - received_offsets[p]);
    if (got.size() != want.size() ||
        (!want.empty() && std::memcmp(got.data(), want.data(), want.size()) != 0))
      return differs(t, "all_to_all", round, peer);
    const auto rank = static_cast<std::size_t>(peer);
    if (t.bytes_sent_to()[rank] - before[rank] != static_cast<std::int64_t>(offsets[p + 1] - offsets[p]))
      return internal_error("all_to_all: bytes_sent_to does not count what was sent");
  }
  return {};
}

// Odd and even ranks, then neighbours (of an odd number the last is alone), then one alone: groups
// that exchange at the same time, with no call of everyone between them.
Status check_groups(Transport& t, int round, Bytes& received, std::vector<std::size_t>& received_offsets) {
  std::vector<int> alike;
  for (int r = t.rank() % 2; r < t.size(); r += 2) alike.push_back(r);
  std::vector<int> neighbours = {t.rank() / 2 * 2};
  if (neighbours[0] + 1 < t.size()) neighbours.push_back(neighbours[0] + 1);
  const std::vector<int> alone = {t.rank()};
  GRACE_TRY(check_all_to_all(t, alike, round, received, received_offsets));
  GRACE_TRY(check_all_to_all(t, neighbours, round, received, received_offsets));
  return check_all_to_all(t, alone, round, received, received_offsets);
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
  for (int round = 0; round < 12; ++round) {
    GRACE_TRY(check_all_to_all(transport, {}, round, received, received_offsets));
    GRACE_TRY(check_groups(transport, round, received, received_offsets));
    if (round % 3 == 0) GRACE_TRY(transport.barrier());
    if (round % 2 == 0) GRACE_TRY(check_all_gather(transport, round));
  }
  return {};
}

}  // namespace grace::comm
