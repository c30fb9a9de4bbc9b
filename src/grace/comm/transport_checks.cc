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
  if (received_offsets.size() != static_cast<std::size_t>(t.size()) + 1 ||
      received_offsets.back() != received.size())
    return internal_error("all_to_all: offsets do not fit what was received");
  for (int peer = 0; peer < t.size(); ++peer) {
    const auto p = static_cast<std::size_t>(peer);
    const Bytes want = content(peer, t.rank(), round, bytes_of(peer, t.rank(), round));
    const std::span<const std::byte> got =
        std::span(received).subspan(received_offsets[p], received_offsets[p + 1] - received_offsets[p]);
    if (got.size() != want.size() ||
        (!want.empty() && std::memcmp(got.data(), want.data(), want.size()) != 0))
      return differs(t, "all_to_all", round, peer);
    if (t.bytes_sent_to()[p] - before[p] != static_cast<std::int64_t>(offsets[p + 1] - offsets[p]))
      return internal_error("all_to_all: bytes_sent_to does not count what was sent");
  }
  return {};
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
    GRACE_TRY(check_all_to_all(transport, round, received, received_offsets));
    if (round % 3 == 0) GRACE_TRY(transport.barrier());
    if (round % 2 == 0) GRACE_TRY(check_all_gather(transport, round));
  }
  return {};
}

}  // namespace grace::comm
