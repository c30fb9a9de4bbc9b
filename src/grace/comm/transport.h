// How ranks talk: the one seam that in_process (ranks as threads) and mpi stand behind.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "grace/base/result.h"
#include "grace/comm/channel.h"

namespace grace {

// One rank's end. Thread-compatible: one thread per rank uses it. all_to_all, all_gather and barrier are collective: all ranks must call the same ones in
// the same order. Every wait has a deadline: it ends when nothing has come for the timeout. Errors: timeout, naming the rank waited for; peer_lost when
// another rank left with a fault, ended early, or is in another call. A fault ends the calls under way too. After an error every further call returns it again.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // A channel among the ranks of `group`. Collective: all ranks open as many channels in the same order, each among the ranks of a group that it is in, and the
  // members of a group name the same one. The transport must outlive it. REQUIRES: group ascends and holds this rank.
  std::unique_ptr<Channel> open(std::vector<int> group, Reading reading);
  // Whether `rank`'s messages on a channel that is read in place are: it shares memory with this one.
  virtual bool shares_memory_with(int rank) const = 0;

  // Sends send[offsets[r], offsets[r+1]) to rank r (its own part too) and receives everyone's into `received`, by ascending source, with received_offsets [size + 1].
  // REQUIRES: send_offsets: [size + 1], ascending from 0 to send.size().
  Status all_to_all(std::span<const std::byte> send, std::span<const std::size_t> send_offsets, std::vector<std::byte>& received,
                    std::vector<std::size_t>& received_offsets);
  // Everyone's bytes, by ascending source.
  Result<std::vector<std::vector<std::byte>>> all_gather(std::span<const std::byte> mine);
  Status barrier();
  // Wakes the others with `reason` before this rank leaves with a fault; their waits end with peer_lost.
  virtual void abort(std::string_view reason) = 0;

  // Bytes handed over for each destination so far by channels and all_to_all, [size]. Who sends how much, and to whom, travels with the first part of each
  // message (in a header that is not counted).
  const std::vector<std::int64_t>& bytes_sent_to() const { return bytes_sent_to_; }

 protected:
  explicit Transport(int size);
  // number: how many channels this rank opened before.
  virtual std::unique_ptr<Channel> make_channel(std::vector<int> group, Reading reading, int number) = 0;
  // Gives up what belongs to channels, before the transport's own parts go.
  void close() { everyone_.reset(); }

  std::vector<std::int64_t> bytes_sent_to_;

 private:
  Channel& everyone(comm::Call call);
  int channels_ = 0;
  std::unique_ptr<Channel> everyone_;
};

// Runs body once for each of `size` ranks, each a thread, and waits for all; a rank that returns an error wakes the others. Returns the first
// error that was not caused by another rank: the lowest rank's that is not peer_lost, else the lowest rank's. REQUIRES: size >= 1; body throws nothing.
Status run_in_process(int size, std::chrono::milliseconds timeout, const std::function<Status(Transport&)>& body);

}  // namespace grace
