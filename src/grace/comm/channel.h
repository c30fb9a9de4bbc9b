// One exchange after another among the same ranks: begun, looked after while something else is done, and
// ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "grace/base/result.h"
#include "grace/comm/call.h"

namespace grace {

// Whether a message may be read where its sender wrote it, by ranks that share memory, or is brought over.
enum class Reading { kCopied, kInPlace };

// What is written into a message before it leaves. Grows, and keeps what it holds. Begins at a multiple of 64
// bytes. Thread-compatible.
class MessageBuffer {
 public:
  virtual ~MessageBuffer() = default;
  // So many bytes more, of any content; where they begin. Earlier places may have moved.
  std::byte* append(std::size_t bytes) {
    if (bytes > capacity_ - size_) make_room(size_ + bytes);
    std::byte* at = data_ + size_;
    size_ += bytes;
    return at;
  }
  void clear() { size_ = 0; }
  std::size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::span<std::byte> bytes() { return {data_, size_}; }

 protected:
  // Sets data_ and capacity_ to hold at least so many bytes; the first size_ stay what they are.
  virtual void grow(std::size_t capacity) = 0;

  std::byte* data_ = nullptr;
  std::size_t size_ = 0, capacity_ = 0;

 private:
  void make_room(std::size_t bytes);
};

// In this process's own memory.
class OwnBuffer final : public MessageBuffer {
 public:
  // Bytes before the message that are its owner's, for a header that travels with it.
  static constexpr std::size_t kRoomBefore = 64;
  ~OwnBuffer() override;
  OwnBuffer() = default;
  OwnBuffer(const OwnBuffer&) = delete;
  OwnBuffer& operator=(const OwnBuffer&) = delete;

 private:
  void grow(std::size_t capacity) override;
};

// The end of one rank. Used by that rank's thread: fill outgoing(), begin(), poll() now and then, finish(),
// read received(). Several channels of a rank may be under way at the same time. A wait ends with an error,
// naming the rank, when for the transport's timeout nothing has come; errors are those of the transport.
class Channel {
 public:
  virtual ~Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Ascending ranks, this one at own().
  const std::vector<int>& group() const { return group_; }
  std::size_t own() const { return own_; }

  // What the group's rank i is sent by the next begin(); own() is sent nothing. May be written when the last
  // exchange has ended; on a channel that is read in place, when that rank is also known to be through with
  // what it was sent: an exchange on another channel that it began after, say.
  MessageBuffer& outgoing(std::size_t i) { return *outgoing_[i]; }
  // REQUIRES: no exchange is under way.
  Status begin();
  // Moves what can be moved without waiting; whether the exchange has ended.
  virtual Result<bool> poll() = 0;
  // Waits until it has.
  virtual Status finish() = 0;
  // Whether rank i's message is here, though others may be missing.
  virtual bool has_come(std::size_t i) const = 0;
  // What came from the group's rank i, at a multiple of 64 bytes; nothing from own(). Stays until the next
  // begin(). REQUIRES: has_come(i).
  std::span<const std::byte> received(std::size_t i) const { return received_[i]; }

 protected:
  // bytes_sent_to: [ranks] of the transport, where this channel counts.
  Channel(std::vector<int> group, int rank, std::vector<std::int64_t>& bytes_sent_to);
  virtual Status send() = 0;
  comm::Call call() const { return call_; }

  std::vector<std::shared_ptr<MessageBuffer>> outgoing_;  // [group]; whoever reads in place keeps one alive
  std::vector<std::span<const std::byte>> received_;      // [group]

 private:
  friend class Transport;
  std::vector<int> group_;
  std::size_t own_ = 0;
  std::vector<std::int64_t>& bytes_sent_to_;
  comm::Call call_ = comm::Call::kAllToAll;
};

}  // namespace grace
