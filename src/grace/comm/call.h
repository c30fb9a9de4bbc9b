// What the transports say about their collective calls: which call a message belongs to, and the errors'
// words.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "grace/base/result.h"

namespace grace::comm {

enum class Call : std::uint64_t { kAllToAll, kAllGather, kBarrier };

inline std::string_view name_of(Call call) {
  switch (call) {
    case Call::kAllToAll:
      return "all_to_all";
    case Call::kAllGather:
      return "all_gather";
    case Call::kBarrier:
      return "barrier";
  }
  return "an unknown call";
}

inline std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

inline Error waited_too_long(int rank, int peer, Call call, std::chrono::milliseconds timeout) {
  return timed_out(rank_name(rank) + ": waited " + std::to_string(timeout.count()) + " ms for " +
                   rank_name(peer) + " in " + std::string(name_of(call)));
}
inline Error in_another_call(int rank, int peer, Call mine, Call theirs) {
  return peer_lost(rank_name(rank) + ": " + rank_name(peer) + " is in " + std::string(name_of(theirs)) +
                   ", this rank in " + std::string(name_of(mine)));
}
// `peer` sent another number of bytes than it had said it would.
inline Error cut_short(int rank, int peer, Call call, std::size_t bytes, std::size_t announced) {
  return peer_lost(rank_name(peer) + ": its message to " + rank_name(rank) + " in " +
                   std::string(name_of(call)) + " has " + std::to_string(bytes) + " bytes where " +
                   std::to_string(announced) + " were announced");
}
inline Error too_long(int rank, int peer, Call call, std::size_t announced) {
  return peer_lost(rank_name(peer) + ": its message to " + rank_name(rank) + " in " +
                   std::string(name_of(call)) + " has more than the " + std::to_string(announced) +
                   " bytes that were announced");
}
inline Error left_with_fault(int rank, int peer, std::string_view reason) {
  return peer_lost(rank_name(rank) + ": " + rank_name(peer) + " left: " + std::string(reason));
}

}  // namespace grace::comm
