// Ranks as threads of one process: a hub with a mailbox for every ordered pair of ranks, under one mutex.
#include <algorithm>
#include <condition_variable>
#include <cstring>
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
using Clock = std::chrono::steady_clock;

// Of a pair of ranks, where neither runs far ahead; more are room that is made when it is needed.
constexpr std::size_t kMessagesAtOnce = 16;

struct Message {
  int channel;
  Call call;
  std::shared_ptr<MessageBuffer> buffer;  // the sender's own where the message is read in place
  std::span<const std::byte> bytes;       // of the buffer
};
struct Fault {
  int rank;
  std::string reason;
};

// Thread-safe. Messages of a pair and channel are taken in the order in which they were put.
class Hub {
 public:
  Hub(int size, std::chrono::milliseconds timeout)
      : timeout_(timeout),
        mailboxes_(to_idx(size) * to_idx(size)),
        arrived_(to_idx(size)),
        ended_(to_idx(size), false) {
    for (std::vector<Message>& box : mailboxes_) box.reserve(kMessagesAtOnce);
  }

  int size() const { return static_cast<int>(arrived_.size()); }
  std::chrono::milliseconds timeout() const { return timeout_; }

  void put(int from, int to, Message message) {
    {
      const std::lock_guard lock(mutex_);
      mailbox(from, to).push_back(std::move(message));
    }
    arrived_[to_idx(to)].notify_one();
  }

  // The next message of `from` to `to` on the channel, which must belong to `call`; nothing where it has not
  // come by the deadline.
  Result<std::optional<Message>> take(int from, int to, int channel, Call call, Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    std::vector<Message>& box = mailbox(from, to);
    const auto find = [&] { return std::ranges::find(box, channel, &Message::channel); };
    const auto is_over = [&] { return find() != box.end() || fault_.has_value() || ended_[to_idx(from)]; };
    if (!arrived_[to_idx(to)].wait_until(lock, deadline, is_over)) return std::optional<Message>();
    if (fault_.has_value()) return comm::left_with_fault(to, fault_->rank, fault_->reason);
    const auto at = find();
    if (at == box.end())
      return comm::left_with_fault(to, from,
                                   "it ended while others wait for it in " + std::string(name_of(call)));
    if (at->call != call) return comm::in_another_call(to, from, call, at->call);
    std::optional<Message> message = std::move(*at);
    box.erase(at);
    return message;
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
  std::vector<Message>& mailbox(int from, int to) {
    return mailboxes_[to_idx(from) * arrived_.size() + to_idx(to)];
  }

  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::vector<std::vector<Message>> mailboxes_;   // [size, size]: from, to; few at a time
  std::vector<std::condition_variable> arrived_;  // [size]: what rank `to` waits on
  std::vector<bool> ended_;                       // [size]
  std::optional<Fault> fault_;
};

class InProcessChannel final : public Channel {
 public:
  InProcessChannel(Hub& hub, int rank, std::vector<int> group, Reading reading, int number,
                   std::vector<std::int64_t>& bytes_sent_to, std::optional<Error>& fault)
      : Channel(std::move(group), rank, bytes_sent_to),
        hub_(hub),
        rank_(rank),
        reading_(reading),
        number_(number),
        messages_(this->group().size()),
        come_(this->group().size(), true),
        fault_(fault) {
    for (auto& buffer : outgoing_) buffer = std::make_shared<OwnBuffer>();
  }

  Result<bool> poll() override {
    GRACE_TRY(take_until([](std::size_t) { return Clock::time_point(); }));
    return missing_ == 0;
  }

  Status finish() override {
    const Status status = take_until([&](std::size_t) { return Clock::now() + hub_.timeout(); });
    if (!status.ok() || missing_ == 0) return status;
    const auto i = static_cast<std::size_t>(std::ranges::find(come_, false) - come_.begin());
    fault_ = comm::waited_too_long(rank_, group()[i], call(), hub_.timeout());
    return *fault_;
  }

  bool has_come(std::size_t i) const override { return come_[i]; }

 private:
  Status send() override {
    if (fault_.has_value()) return *fault_;
    for (std::size_t i = 0; i < group().size(); ++i) {
      received_[i] = {};
      come_[i] = i == own();
      if (i == own()) continue;
      std::shared_ptr<MessageBuffer> buffer = outgoing_[i];
      if (reading_ == Reading::kCopied && buffer->size() > 0) buffer = copy_of(*buffer);
      const std::span<const std::byte> bytes = std::as_const(*buffer).bytes();
      hub_.put(rank_, group()[i], {number_, call(), std::move(buffer), bytes});
    }
    missing_ = group().size() - 1;
    return {};
  }

  static std::shared_ptr<MessageBuffer> copy_of(const MessageBuffer& buffer) {
    auto copy = std::make_shared<OwnBuffer>();
    std::byte* to = copy->append(buffer.size());
    if (buffer.size() > 0) std::memcpy(to, buffer.bytes().data(), buffer.size());
    return copy;
  }

  template <typename Deadline>
  Status take_until(Deadline deadline) {
    if (fault_.has_value()) return *fault_;
    for (std::size_t i = 0; missing_ > 0 && i < group().size(); ++i) {
      if (come_[i]) continue;
      Result<std::optional<Message>> taken = hub_.take(group()[i], rank_, number_, call(), deadline(i));
      if (!taken.ok()) {
        fault_ = taken.error();
        return *fault_;
      }
      if (!taken.value().has_value()) continue;
      messages_[i] = *std::move(taken).value();
      received_[i] = messages_[i].bytes;
      come_[i] = true;
      --missing_;
    }
    return {};
  }

  Hub& hub_;
  const int rank_;
  const Reading reading_;
  const int number_;
  std::vector<Message> messages_;  // [group]
  std::vector<bool> come_;         // [group]
  std::size_t missing_ = 0;
  std::optional<Error>& fault_;
};

class InProcessTransport final : public Transport {
 public:
  InProcessTransport(Hub& hub, int rank) : Transport(hub.size()), hub_(hub), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return hub_.size(); }
  bool shares_memory_with(int) const override { return true; }

  void abort(std::string_view reason) override {
    if (!fault_.has_value()) fault_ = peer_lost(comm::rank_name(rank_) + ": left: " + std::string(reason));
    hub_.abort(rank_, reason);
  }

 private:
  std::unique_ptr<Channel> make_channel(std::vector<int> group, Reading reading, int number) override {
    return std::make_unique<InProcessChannel>(hub_, rank_, std::move(group), reading, number, bytes_sent_to_,
                                              fault_);
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
