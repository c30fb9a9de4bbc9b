#include "grace/comm/mpi/mpi_transport.h"

#include <cstdlib>

namespace grace {

// The one read of the environment in the library: MPI itself cannot be asked before it is initialised, and
// initialising it outside mpirun is what the caller wants to avoid.
bool inside_mpi() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

}  // namespace grace

#ifndef GRACE_WITH_MPI

namespace grace {

Result<std::unique_ptr<Transport>> make_mpi_transport(int*, char***, std::chrono::milliseconds) {
  return unsupported("transport mpi: this program was built without MPI (GRACE_MPI=OFF)");
}

}  // namespace grace

#else

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "grace/comm/call.h"

namespace grace {
namespace {

using comm::Call;
using Bytes = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;

// Messages of 256 KiB to 1 MiB travel fastest, and MPI counts in int: longer ones go in chunks of this size.
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
// So short that it is sent at once, whether or not anybody waits for it.
constexpr std::size_t kMaxReasonBytes = 1000;
constexpr std::chrono::milliseconds kTellTimeout{1000};
// How long a rank with a fault waits for the others to hear of it: longer than a step usually takes.
constexpr std::chrono::milliseconds kFaultTimeout{10000};
enum Tag { kAnnouncementTag = 1, kPayloadTag = 2, kFaultTag = 3 };

// What a rank tells each other rank before the payload.
struct Announcement {
  std::uint64_t call = 0;
  std::uint64_t bytes = 0;
};

// Requests under way and the rank that each one waits for.
class Requests {
 public:
  // Where MPI writes the next request. REQUIRES: used at once; the next call may move it.
  MPI_Request* next(int peer) { return next(peer, kSends); }
  // The same for one that receives a message of so many bytes.
  MPI_Request* next(int peer, std::size_t bytes) {
    peers_.push_back(peer);
    bytes_.push_back(bytes);
    return &requests_.emplace_back(MPI_REQUEST_NULL);
  }
  // Whether all are done; completes those that can be.
  bool test() {
    int done = 0;
    statuses_.resize(requests_.size());
    failed_ = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses_.data()) !=
              MPI_SUCCESS;
    return done != 0 || failed_;
  }
  // Whether MPI refused one; others may then still be under way.
  bool failed() const { return failed_; }
  // What is wrong with a message that came: MPI takes a shorter one than was asked for without a word.
  // REQUIRES: test() was true, and is not called again.
  std::optional<Error> wrong_message(int rank, Call call) const {
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      const MPI_Status& status = statuses_[i];
      if (failed_ && status.MPI_ERROR == MPI_ERR_TRUNCATE)
        return comm::too_long(rank, peers_[i], call, bytes_[i]);
      if (failed_ && status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING)
        return lost(rank, peers_[i], call, status.MPI_ERROR);
      if (failed_ || bytes_[i] == kSends) continue;
      int came = 0;
      MPI_Get_count(&status, MPI_BYTE, &came);
      if (static_cast<std::size_t>(came) != bytes_[i])
        return comm::cut_short(rank, peers_[i], call, static_cast<std::size_t>(came), bytes_[i]);
    }
    if (failed_) return lost(rank, peers_.empty() ? rank : peers_.front(), call, MPI_ERR_UNKNOWN);
    return std::nullopt;
  }
  // REQUIRES: test() was false.
  int first_missing() {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      int done = 0;
      MPI_Test(&requests_[i], &done, MPI_STATUS_IGNORE);
      if (done == 0) return peers_[i];
    }
    return peers_.back();
  }

 private:
  static constexpr std::size_t kSends = ~std::size_t{0};

  static Error lost(int rank, int peer, Call call, int code) {
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(code, text.data(), &length);
    return peer_lost(comm::rank_name(rank) + ": " + std::string(name_of(call)) + " with " +
                     comm::rank_name(peer) + ": " +
                     std::string(text.data(), static_cast<std::size_t>(length)));
  }

  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<int> peers_;
  std::vector<std::size_t> bytes_;  // kSends for what is sent
  bool failed_ = false;
};

class MpiTransport final : public Transport {
 public:
  MpiTransport(int rank, int size, MPI_Comm data, MPI_Comm control, std::chrono::milliseconds timeout)
      : Transport(size), rank_(rank), size_(size), data_(data), control_(control), timeout_(timeout) {
    announced_.resize(static_cast<std::size_t>(size));
    heard_.resize(static_cast<std::size_t>(size));
  }

  ~MpiTransport() override {
    // Finalising waits for the others without a deadline, so all must be known to be here. A process that
    // leaves without it makes mpirun end the rest, and, unlike one that calls MPI_Abort, can still say what
    // went wrong.
    if (payload_pending_) return;
    if (!all_have_come()) {
      if (fault_.has_value()) return;
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Status all_to_all_among(std::span<const int> group, std::span<const std::byte> send,
                          std::span<const std::size_t> send_offsets, Bytes& received,
                          std::vector<std::size_t>& received_offsets) override {
    hand_over(group, send, send_offsets);
    const Clock::time_point deadline = Clock::now() + timeout_;
    const auto part = [&](std::size_t i) {
      return send.subspan(send_offsets[i], send_offsets[i + 1] - send_offsets[i]);
    };
    GRACE_TRY(announce(Call::kAllToAll, group, deadline, [&](std::size_t i) { return part(i).size(); }));
    received_offsets.assign(1, 0);
    for (const int from : group)
      received_offsets.push_back(received_offsets.back() + heard_[static_cast<std::size_t>(from)].bytes);
    received.resize(received_offsets.back());
    return carry(Call::kAllToAll, group, deadline, part,
                 [&](std::size_t i) { return received.data() + received_offsets[i]; });
  }

  Result<std::vector<Bytes>> all_gather(std::span<const std::byte> mine) override {
    const Clock::time_point deadline = Clock::now() + timeout_;
    GRACE_TRY(announce(Call::kAllGather, everyone(), deadline, [&](std::size_t) { return mine.size(); }));
    std::vector<Bytes> all(heard_.size());
    for (std::size_t from = 0; from < all.size(); ++from) all[from].resize(heard_[from].bytes);
    GRACE_TRY(carry(
        Call::kAllGather, everyone(), deadline, [&](std::size_t) { return mine; },
        [&](std::size_t from) { return all[from].data(); }));
    return all;
  }

  Status barrier() override {
    return announce(Call::kBarrier, everyone(), Clock::now() + timeout_,
                    [](std::size_t) { return std::size_t{0}; });
  }

  void abort(std::string_view reason) override {
    if (!fault_.has_value()) fault_ = peer_lost(comm::rank_name(rank_) + ": left: " + std::string(reason));
    if (told_) return;
    told_ = true;
    reason_ = reason.substr(0, kMaxReasonBytes);
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_)
        MPI_Isend(reason_.data(), static_cast<int>(reason_.size()), MPI_BYTE, peer, kFaultTag, control_,
                  telling_.next(peer));
    const Clock::time_point deadline = Clock::now() + kTellTimeout;
    while (!telling_.test() && Clock::now() < deadline) sched_yield();
  }

 private:
  // Step 1 of every call: each rank of a group tells each other which call it is in and how much will follow,
  // bytes_for(i) to the group's rank i; heard_ is what came back. It doubles as the barrier. Point to point
  // rather than MPI_Alltoall, so that a deadline can name the rank, and as quick for so few bytes. A fault is
  // only looked for here: once all have announced a call, all are in it, and what is under way ends.
  template <typename BytesFor>
  Status announce(Call call, std::span<const int> group, Clock::time_point deadline, BytesFor bytes_for) {
    if (fault_.has_value()) return *fault_;
    for (std::size_t i = 0; i < group.size(); ++i)
      announced_[static_cast<std::size_t>(group[i])] = {static_cast<std::uint64_t>(call),
                                                        static_cast<std::uint64_t>(bytes_for(i))};
    heard_[static_cast<std::size_t>(rank_)] = announced_[static_cast<std::size_t>(rank_)];
    Requests& requests = announcements_ = Requests();
    for (const int peer : group) {
      if (peer == rank_) continue;
      const auto p = static_cast<std::size_t>(peer);
      MPI_Irecv(&heard_[p], sizeof(Announcement), MPI_BYTE, peer, kAnnouncementTag, data_,
                requests.next(peer, sizeof(Announcement)));
      MPI_Isend(&announced_[p], sizeof(Announcement), MPI_BYTE, peer, kAnnouncementTag, data_,
                requests.next(peer));
    }
    for (;;) {
      if (look_for_fault()) return *fault_;
      if (requests.test()) break;
      if (Clock::now() >= deadline)
        return fail(comm::waited_too_long(rank_, requests.first_missing(), call, timeout_));
      sched_yield();  // ranks may share a core
    }
    if (std::optional<Error> wrong = requests.wrong_message(rank_, call)) return fail(*std::move(wrong));
    for (const int peer : group) {
      const std::uint64_t theirs = heard_[static_cast<std::size_t>(peer)].call;
      if (theirs != static_cast<std::uint64_t>(call))
        return fail(comm::in_another_call(rank_, peer, call, static_cast<Call>(theirs)));
    }
    return {};
  }

  // Step 2: the payload, as announced. part(i) is what goes to the group's rank i, place(i) where its bytes
  // go.
  template <typename Part, typename Place>
  Status carry(Call call, std::span<const int> group, Clock::time_point deadline, Part part, Place place) {
    Requests requests;
    const std::size_t size = group.size();
    const auto me = static_cast<std::size_t>(std::ranges::find(group, rank_) - group.begin());
    // Each rank starts with the one after it, so that not all send to the first one first.
    for (std::size_t step = 1; step < size; ++step) {
      const std::size_t i = (me + size - step) % size;
      const int from = group[i];
      std::byte* into = place(i);
      const std::size_t bytes = heard_[static_cast<std::size_t>(from)].bytes;
      for (std::size_t at = 0; at < bytes; at += kChunkBytes) {
        const std::size_t chunk = std::min(kChunkBytes, bytes - at);
        MPI_Irecv(into + at, static_cast<int>(chunk), MPI_BYTE, from, kPayloadTag, data_,
                  requests.next(from, chunk));
      }
    }
    for (std::size_t step = 1; step < size; ++step) {
      const std::size_t i = (me + step) % size;
      const int to = group[i];
      const std::span<const std::byte> bytes = part(i);
      for (std::size_t at = 0; at < bytes.size(); at += kChunkBytes)
        MPI_Isend(bytes.data() + at, static_cast<int>(std::min(kChunkBytes, bytes.size() - at)), MPI_BYTE, to,
                  kPayloadTag, data_, requests.next(to));
    }
    const std::span<const std::byte> own = part(me);
    if (!own.empty()) std::memcpy(place(me), own.data(), own.size());
    while (!requests.test()) {
      if (Clock::now() >= deadline) {
        payload_pending_ =
            true;  // MPI still reads and writes the caller's memory: this process cannot go on with MPI
        return fail(comm::waited_too_long(rank_, requests.first_missing(), call, timeout_));
      }
      sched_yield();
    }
    if (std::optional<Error> wrong = requests.wrong_message(rank_, call)) {
      payload_pending_ = requests.failed();
      return fail(*std::move(wrong));
    }
    return {};
  }

  Error fail(Error error) {
    fault_ = std::move(error);
    return *fault_;
  }

  bool look_for_fault() {
    int there = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, kFaultTag, control_, &there, &status);
    if (there == 0) return false;
    std::array<char, kMaxReasonBytes> reason{};
    MPI_Recv(reason.data(), static_cast<int>(reason.size()), MPI_BYTE, status.MPI_SOURCE, kFaultTag, control_,
             &status);
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    fault_ = comm::left_with_fault(rank_, status.MPI_SOURCE,
                                   std::string_view(reason.data(), static_cast<std::size_t>(bytes)));
    return true;
  }

  // The last barrier, with a deadline.
  bool all_have_come() {
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Ibarrier(control_, &request) != MPI_SUCCESS) return false;
    const Clock::time_point deadline =
        Clock::now() + (fault_.has_value() ? std::min(timeout_, kFaultTimeout) : timeout_);
    for (;;) {
      int done = 0;
      if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
      if (done != 0) return true;
      if (Clock::now() >= deadline) return false;
      sched_yield();
    }
  }

  const int rank_;
  const int size_;
  const MPI_Comm data_;
  const MPI_Comm control_;  // faults and the end, so that they never meet the data
  const std::chrono::milliseconds timeout_;
  // Members, for after a failed announcement MPI may still write into them.
  std::vector<Announcement> announced_;  // [size]
  std::vector<Announcement> heard_;      // [size]
  Requests announcements_;
  std::string reason_;
  Requests telling_;
  bool told_ = false;
  bool payload_pending_ = false;
  std::optional<Error> fault_;
};

}  // namespace

Result<std::unique_ptr<Transport>> make_mpi_transport(int* argc, char*** argv,
                                                      std::chrono::milliseconds timeout) {
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (initialised != 0)
    return internal_error("transport mpi: MPI is initialised already; it can be only once in a process");
  int level = MPI_THREAD_SINGLE;
  if (MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS || level < MPI_THREAD_FUNNELED)
    return internal_error("transport mpi: MPI_Init_thread gave level " + std::to_string(level) + ", needs " +
                          std::to_string(MPI_THREAD_FUNNELED));
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm data = MPI_COMM_NULL;
  MPI_Comm control = MPI_COMM_NULL;
  if (MPI_Comm_dup(MPI_COMM_WORLD, &data) != MPI_SUCCESS ||
      MPI_Comm_dup(MPI_COMM_WORLD, &control) != MPI_SUCCESS)
    return internal_error("transport mpi: MPI_Comm_dup failed");
  // An error is an answer, not the end of the process: what is wrong with a message has to be told.
  for (const MPI_Comm comm : {data, control}) MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  return std::unique_ptr<Transport>(std::make_unique<MpiTransport>(rank, size, data, control, timeout));
}

}  // namespace grace

#endif  // GRACE_WITH_MPI
