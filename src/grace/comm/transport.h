// How ranks talk: the one seam that in_process (ranks as threads) and mpi stand behind.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "grace/base/result.h"

namespace grace {

// One rank's end. Thread-compatible: one thread per rank uses it. Every call but all_to_all_among is collective: all ranks must call the same ones in the same order.
// Every wait has a deadline. Errors: timeout, naming the rank waited for; peer_lost when another rank left with a fault, ended early, or is in another call.
// A fault ends the calls under way too, even those that its rank had come to. After an error every further call returns it again.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Sends send[offsets[r], offsets[r+1]) to rank r (its own part too) and receives everyone's into `received`, by ascending source, with received_offsets [size + 1].
  // send_offsets: [size + 1], ascending from 0 to send.size(). One message each way per pair; sizes travel first (counted as neither payload nor header).
  Status all_to_all(std::span<const std::byte> send, std::span<const std::size_t> send_offsets, std::vector<std::byte>& received,
                    std::vector<std::size_t>& received_offsets) {
    return all_to_all_among(everyone_, send, send_offsets, received, received_offsets);
  }
  // The same among the ranks of `group`, the only ones that call it; parts and offsets are by position in the group. Groups that share no rank exchange at
  // the same time. REQUIRES: group ascends, holds this rank, and is the same for all of its ranks; two ranks meet in the same order in all their calls.
  virtual Status all_to_all_among(std::span<const int> group, std::span<const std::byte> send, std::span<const std::size_t> send_offsets,
                                  std::vector<std::byte>& received, std::vector<std::size_t>& received_offsets) = 0;
  // Everyone's bytes, by ascending source.
  virtual Result<std::vector<std::vector<std::byte>>> all_gather(std::span<const std::byte> mine) = 0;
  virtual Status barrier() = 0;
  // Wakes the others with `reason` before this rank leaves with a fault; their waits end with peer_lost.
  virtual void abort(std::string_view reason) = 0;

  // Bytes handed over for each destination so far by all_to_all, [size].
  const std::vector<std::int64_t>& bytes_sent_to() const { return bytes_sent_to_; }

 protected:
  explicit Transport(int size);
  // Checks what all_to_all_among requires and adds up bytes_sent_to(). REQUIRES: group as there; offsets ascend from 0 to send.size().
  void hand_over(std::span<const int> group, std::span<const std::byte> send, std::span<const std::size_t> send_offsets);
  std::span<const int> everyone() const { return everyone_; }

  std::vector<std::int64_t> bytes_sent_to_;

 private:
  std::vector<int> everyone_;  // 0..size-1
};

// Runs body once for each of `size` ranks, each a thread, and waits for all; a rank that returns an error wakes the others. Returns the first
// error that was not caused by another rank: the lowest rank's that is not peer_lost, else the lowest rank's. REQUIRES: size >= 1; body throws nothing.
Status run_in_process(int size, std::chrono::milliseconds timeout, const std::function<Status(Transport&)>& body);

}  // namespace grace
