// Ranks as threads of one process: a hub with a mailbox for every ordered pair of ranks, under one mutex.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "grace/base/check.h"
#include "grace/comm/call.h"
#include "grace/comm/transport.h"

namespace grace {
namespace {

using comm::Call;
using Bytes = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;

struct Message {
  Call call;
  Bytes bytes;
};
struct Fault {
  int rank;
  std::string reason;
};

// Thread-safe. Messages of a pair are taken in the order in which they were put.
class Hub {
 public:
  Hub(int size, std::chrono::milliseconds timeout)
      : timeout_(timeout),
        mailboxes_(to_idx(size) * to_idx(size)),
        arrived_(to_idx(size)),
        ended_(to_idx(size), false) {}

  int size() const { return static_cast<int>(arrived_.size()); }
  Clock::time_point deadline() const { return Clock::now() + timeout_; }

  void put(int from, int to, Message message) {
    {
      const std::lock_guard lock(mutex_);
      mailbox(from, to).push_back(std::move(message));
    }
    arrived_[to_idx(to)].notify_one();
  }

  // The next message of `from` to `to`, which must belong to `call`.
  Result<Bytes> take(int from, int to, Call call, Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    std::deque<Message>& box = mailbox(from, to);
    const auto is_over = [&] { return !box.empty() || fault_.has_value() || ended_[to_idx(from)]; };
    if (!arrived_[to_idx(to)].wait_until(lock, deadline, is_over))
      return comm::waited_too_long(to, from, call, timeout_);
    if (fault_.has_value()) return comm::left_with_fault(to, fault_->rank, fault_->reason);
    if (!box.empty()) {
      if (box.front().call != call) return comm::in_another_call(to, from, call, box.front().call);
      Bytes bytes = std::move(box.front().bytes);
      box.pop_front();
      return bytes;
    }
    return comm::left_with_fault(to, from,
                                 "it ended while others wait for it in " + std::string(name_of(call)));
  }

  // Only the first fault is kept: the later ones follow from it.
  void abort(int rank, std::string_view reason) {
    {
      const std::lock_guard lock(mutex_);
      if (!fault_.has_value()) fault_ = Fault{rank, std::string(reason)};
    }
    for (std::condition_variable& waiter : arrived_) waiter.notify_all();
  }

  void end(int rank) {
    {
      const std::lock_guard lock(mutex_);
      ended_[to_idx(rank)] = true;
    }
    for (std::condition_variable& waiter : arrived_) waiter.notify_all();
  }

 private:
  static std::size_t to_idx(int rank) { return static_cast<std::size_t>(rank); }
  std::deque<Message>& mailbox(int from, int to) {
    return mailboxes_[to_idx(from) * arrived_.size() + to_idx(to)];
  }

  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::vector<std::deque<Message>> mailboxes_;    // [size, size]: from, to
  std::vector<std::condition_variable> arrived_;  // [size]: what rank `to` waits on
  std::vector<bool> ended_;                       // [size]
  std::optional<Fault> fault_;
};

class InProcessTransport final : public Transport {
 public:
  InProcessTransport(Hub& hub, int rank) : Transport(hub.size()), hub_(hub), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return hub_.size(); }

  Status all_to_all_among(std::span<const int> group, std::span<const std::byte> send,
                          std::span<const std::size_t> send_offsets, Bytes& received,
                          std::vector<std::size_t>& received_offsets) override {
    hand_over(group, send, send_offsets);
    const std::vector<Bytes> parts = GRACE_TRY(exchange(Call::kAllToAll, group, [&](std::size_t i) {
      return send.subspan(send_offsets[i], send_offsets[i + 1] - send_offsets[i]);
    }));
    received_offsets.assign(1, 0);
    for (const Bytes& part : parts) received_offsets.push_back(received_offsets.back() + part.size());
    received.clear();
    received.reserve(received_offsets.back());
    for (const Bytes& part : parts) received.insert(received.end(), part.begin(), part.end());
    return {};
  }

  Result<std::vector<Bytes>> all_gather(std::span<const std::byte> mine) override {
    return exchange(Call::kAllGather, everyone(), [mine](std::size_t) { return mine; });
  }

  Status barrier() override {
    const Result<std::vector<Bytes>> all =
        exchange(Call::kBarrier, everyone(), [](std::size_t) { return std::span<const std::byte>(); });
    if (!all.ok()) return all.error();
    return {};
  }

  void abort(std::string_view reason) override {
    if (!fault_.has_value()) fault_ = peer_lost(comm::rank_name(rank_) + ": left: " + std::string(reason));
    hub_.abort(rank_, reason);
  }

 private:
  // Puts part(i) into the mailbox of the group's rank i, then takes from each; by position in the group.
  template <typename Part>
  Result<std::vector<Bytes>> exchange(Call call, std::span<const int> group, Part part) {
    if (fault_.has_value()) return *fault_;
    const Clock::time_point deadline = hub_.deadline();
    for (std::size_t i = 0; i < group.size(); ++i) {
      const std::span<const std::byte> bytes = part(i);
      hub_.put(rank_, group[i], {call, Bytes(bytes.begin(), bytes.end())});
    }
    std::vector<Bytes> parts(group.size());
    for (std::size_t i = 0; i < group.size(); ++i) {
      Result<Bytes> taken = hub_.take(group[i], rank_, call, deadline);
      if (!taken.ok()) {
        fault_ = taken.error();
        return *fault_;
      }
      parts[i] = std::move(taken).value();
    }
    return parts;
  }

  Hub& hub_;
  const int rank_;
  std::optional<Error> fault_;
};

}  // namespace

Status run_in_process(int size, std::chrono::milliseconds timeout,
                      const std::function<Status(Transport&)>& body) {
  GRACE_CHECK(size >= 1, "there is at least one rank");
  Hub hub(size, timeout);
  std::vector<Status> statuses(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      InProcessTransport transport(hub, rank);
      Status status = body(transport);
      if (!status.ok()) hub.abort(rank, status.error().message);
      hub.end(rank);
      statuses[static_cast<std::size_t>(rank)] = std::move(status);
    });
  }
  for (std::thread& thread : threads) thread.join();

  const auto is_cause = [](const Status& s) { return !s.ok() && s.error().kind != ErrorKind::kPeerLost; };
  const auto cause = std::ranges::find_if(statuses, is_cause);
  if (cause != statuses.end()) return *cause;
  const auto any = std::ranges::find_if(statuses, [](const Status& s) { return !s.ok(); });
  return any != statuses.end() ? *any : Status();
}

}  // namespace grace
