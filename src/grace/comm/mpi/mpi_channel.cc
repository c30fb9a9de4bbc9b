#include "grace/comm/mpi/mpi_channel.h"

#ifdef GRACE_WITH_MPI

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "grace/base/check.h"
#include "grace/comm/call.h"

namespace grace::comm {
namespace {

using Clock = std::chrono::steady_clock;

// What the first part holds beside its header: with it, less than what MPI sends over TCP without asking.
constexpr std::size_t kFirstBytes = std::size_t{60} << 10;
// Messages of 256 KiB to 1 MiB travel fastest, and MPI counts in int.
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
// How long a rank that waits looks without a pause, and how long it then pauses between two looks, so that
// others who share its core can work.
constexpr std::chrono::microseconds kEager{200};
constexpr std::chrono::microseconds kPause{50};
// Tags are at least 15 bits: which channel, which of its exchanges, and which part.
constexpr int kChannels = 510;
constexpr int kExchanges = 32;

}  // namespace

struct MpiChannel::Header {
  std::uint64_t call = 0;
  std::uint64_t bytes = 0;
  // Where the message is read in place: the buffer, as SharedView::look wants it; else -1 and 0.
  std::int64_t descriptor = -1;
  std::uint64_t capacity = 0;
};

MpiChannel::MpiChannel(MpiSession& session, std::vector<int> group, Reading reading, int number,
                       std::vector<std::int64_t>& bytes_sent_to)
    : Channel(std::move(group), session.rank, bytes_sent_to),
      session_(session),
      reading_(reading),
      number_(number) {
  static_assert(sizeof(Header) <= OwnBuffer::kRoomBefore);
  for (std::size_t i = 0; i < this->group().size(); ++i) {
    incoming_.push_back(std::make_shared<OwnBuffer>());
    views_.push_back(std::make_unique<SharedView>());
    announcements_.push_back(std::make_shared<OwnBuffer>());
    if (shares_with(i))
      outgoing_[i] = std::make_shared<SharedBuffer>();
    else
      outgoing_[i] = std::make_shared<OwnBuffer>();
  }
  missing_parts_.assign(this->group().size(), 0);
}

MpiChannel::~MpiChannel() {
  const std::lock_guard lock(session_.turn);
  session_.ended(*this);
  if (reading_ == Reading::kInPlace)
    for (const auto& buffer : outgoing_) session_.retire(buffer);
  if (active_ == 0) return;
  if (call() == Call::kAllToAll) session_.given_up = true;
  for (const auto& buffers : {incoming_, announcements_})
    for (const auto& buffer : buffers) session_.keep(buffer);
  for (const auto& buffer : outgoing_) session_.keep(buffer);
}

bool MpiChannel::shares_with(std::size_t peer) const {
  return reading_ == Reading::kInPlace && peer != own() &&
         session_.process_of_rank[static_cast<std::size_t>(group()[peer])] >= 0;
}

int MpiChannel::tag(bool first) const {
  const int channel = number_ < 0 ? 0 : 1 + number_ % kChannels;
  const auto exchange = static_cast<int>(exchanges_ % kExchanges);
  return (channel * kExchanges + exchange) * 2 + (first ? 0 : 1);
}

// Where MPI writes the next request. REQUIRES: used at once; the next call may move it.
MPI_Request* MpiChannel::next(Part part) {
  parts_.push_back(part);
  ++active_;
  return &requests_.emplace_back(MPI_REQUEST_NULL);
}

Status MpiChannel::send() {
  const std::lock_guard lock(session_.turn);
  if (session_.fault().has_value()) return *session_.fault();
  GRACE_CHECK(active_ == 0, "an exchange is under way on this channel");
  if (number_ < 0) session_.everyone_begins();
  ++exchanges_;
  requests_.clear();
  parts_.clear();
  const std::size_t size = group().size();
  std::ranges::fill(received_, std::span<const std::byte>());
  missing_parts_.assign(size, kUnknown);
  missing_parts_[own()] = 0;
  // Each rank starts with the one after it, so that not all send to the first one first.
  for (std::size_t step = 1; step < size; ++step) expect_first((own() + size - step) % size);
  for (std::size_t step = 1; step < size; ++step) send_parts((own() + step) % size);
  moved_ = Clock::now();
  if (active_ > 0) session_.begun(*this);
  return {};
}

void MpiChannel::expect_first(std::size_t peer) {
  OwnBuffer& buffer = *incoming_[peer];
  buffer.clear();
  std::byte* into = buffer.append(kFirstBytes) - sizeof(Header);
  MPI_Irecv(into, static_cast<int>(sizeof(Header) + kFirstBytes), MPI_BYTE, group()[peer], tag(true),
            session_.data, next({Part::kFirst, peer, kUnknown}));
}

void MpiChannel::send_parts(std::size_t peer) {
  const std::span<std::byte> message = outgoing_[peer]->bytes();
  Header header{static_cast<std::uint64_t>(call()), message.size(), -1, 0};
  OwnBuffer* carrier = static_cast<OwnBuffer*>(outgoing_[peer].get());
  if (shares_with(peer)) {
    const auto& shared = static_cast<const SharedBuffer&>(*outgoing_[peer]);
    header.descriptor = shared.descriptor();
    header.capacity = shared.capacity();
    carrier = announcements_[peer].get();
  }
  if (carrier->bytes().data() == nullptr) {  // nothing was written: the header still needs a place
    carrier->append(1);
    carrier->clear();
  }
  const std::size_t here = shares_with(peer) ? 0 : message.size();
  const std::size_t first = std::min(here, kFirstBytes);
  std::byte* from = carrier->bytes().data() - sizeof(Header);
  std::memcpy(from, &header, sizeof header);
  MPI_Isend(from, static_cast<int>(sizeof header + first), MPI_BYTE, group()[peer], tag(true), session_.data,
            next({Part::kSent, peer, 0}));
  for (std::size_t at = first; at < here; at += kChunkBytes)
    MPI_Isend(message.data() + at, static_cast<int>(std::min(kChunkBytes, here - at)), MPI_BYTE,
              group()[peer], tag(false), session_.data, next({Part::kSent, peer, 0}));
}

void MpiChannel::advance() {
  if (active_ == 0 || session_.fault().has_value()) return;
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int done = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &done, indices_.data(),
                                statuses_.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) {
    session_.fail(refused(parts_.front(), code));
    return;
  }
  if (done == MPI_UNDEFINED || done == 0) return;
  moved_ = Clock::now();
  for (std::size_t n = 0; n < static_cast<std::size_t>(done); ++n) {
    const Part part = parts_[static_cast<std::size_t>(indices_[n])];
    --active_;
    if (code == MPI_ERR_IN_STATUS && statuses_[n].MPI_ERROR != MPI_SUCCESS) {
      session_.fail(refused(part, statuses_[n].MPI_ERROR));
      return;
    }
    const Status taken = take(part, statuses_[n]);
    if (!taken.ok()) return;
  }
  if (active_ == 0) session_.ended(*this);
}

// MPI takes a shorter message than was asked for without a word.
Status MpiChannel::take(const Part& part, const MPI_Status& status) {
  if (part.kind == Part::kSent) return {};
  int came = 0;
  MPI_Get_count(&status, MPI_BYTE, &came);
  const auto bytes = static_cast<std::size_t>(came);
  if (part.kind == Part::kFirst) return take_first(part.peer, bytes);
  if (bytes != part.bytes)
    return session_.fail(cut_short(session_.rank, group()[part.peer], call(), bytes, part.bytes));
  --missing_parts_[part.peer];
  return {};
}

Status MpiChannel::take_first(std::size_t peer, std::size_t bytes) {
  const int rank = group()[peer];
  OwnBuffer& buffer = *incoming_[peer];
  Header header;
  if (bytes < sizeof header)
    return session_.fail(cut_short(session_.rank, rank, call(), bytes, sizeof header));
  std::memcpy(&header, buffer.bytes().data() - sizeof header, sizeof header);
  if (header.call != static_cast<std::uint64_t>(call()))
    return session_.fail(in_another_call(session_.rank, rank, call(), static_cast<Call>(header.call)));
  const bool in_place = shares_with(peer);
  const std::size_t first = in_place ? 0 : std::min<std::size_t>(header.bytes, kFirstBytes);
  if (bytes != sizeof header + first)
    return session_.fail(cut_short(session_.rank, rank, call(), bytes - sizeof header, first));
  missing_parts_[peer] = 0;
  if (in_place) {
    if (header.bytes == 0) return {};
    received_[peer] = views_[peer]->look(session_.process_of_rank[static_cast<std::size_t>(rank)],
                                         static_cast<int>(header.descriptor), header.capacity, header.bytes);
    if (!received_[peer].empty()) return {};
    return session_.fail(peer_lost(rank_name(session_.rank) + ": cannot read the " +
                                   std::to_string(header.bytes) + " bytes that " + rank_name(rank) +
                                   " holds for it in shared memory"));
  }
  if (header.bytes > kFirstBytes) buffer.append(header.bytes - kFirstBytes);
  const std::span<std::byte> whole = buffer.bytes().first(header.bytes);
  received_[peer] = whole;
  for (std::size_t at = first; at < whole.size(); at += kChunkBytes) {
    const std::size_t chunk = std::min(kChunkBytes, whole.size() - at);
    ++missing_parts_[peer];
    MPI_Irecv(whole.data() + at, static_cast<int>(chunk), MPI_BYTE, rank, tag(false), session_.data,
              next({Part::kRest, peer, chunk}));
  }
  return {};
}

Error MpiChannel::refused(const Part& part, int code) const {
  const int peer = group()[part.peer];
  if (code == MPI_ERR_TRUNCATE)
    return too_long(session_.rank, peer, call(), part.bytes == kUnknown ? kFirstBytes : part.bytes);
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return peer_lost(rank_name(session_.rank) + ": " + std::string(name_of(call())) + " with " +
                   rank_name(peer) + ": " + std::string(text.data(), static_cast<std::size_t>(length)));
}

Result<bool> MpiChannel::poll() {
  const std::lock_guard lock(session_.turn);
  advance();
  if (session_.fault().has_value()) return *session_.fault();
  return active_ == 0;
}

Status MpiChannel::finish() {
  std::unique_lock lock(session_.turn);
  session_.attend(true);
  const Clock::time_point start = Clock::now();
  moved_ = start;
  for (;;) {
    advance();
    if (active_ == 0 || session_.fault().has_value() || session_.look_for_fault()) break;
    const Clock::time_point now = Clock::now();
    if (now - moved_ >= session_.timeout) {
      const auto missing = std::ranges::find_if(missing_parts_, [](std::size_t parts) { return parts > 0; });
      const auto peer = missing == missing_parts_.end()
                            ? parts_.back().peer
                            : static_cast<std::size_t>(missing - missing_parts_.begin());
      session_.fail(waited_too_long(session_.rank, group()[peer], call(), session_.timeout));
      break;
    }
    if (now - moved_ < kEager)
      sched_yield();
    else
      std::this_thread::sleep_for(kPause);
  }
  session_.attend(false);
  if (session_.fault().has_value()) return *session_.fault();
  if (number_ < 0) session_.everyone_ended();
  return {};
}

}  // namespace grace::comm

#endif  // GRACE_WITH_MPI
