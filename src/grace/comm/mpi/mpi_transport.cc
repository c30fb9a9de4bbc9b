#include "grace/comm/mpi/mpi_transport.h"

#include <cstdlib>

namespace grace {

// The one read of the environment in the library: MPI itself cannot be asked before it is initialised, and
// initialising it outside mpirun is what the caller wants to avoid.
bool inside_mpi() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

}  // namespace grace

#ifndef GRACE_WITH_MPI

namespace grace {

Result<std::unique_ptr<Transport>> make_mpi_transport(int*, char***, std::chrono::milliseconds, Progress) {
  return unsupported("transport mpi: this program was built without MPI (GRACE_MPI=OFF)");
}

}  // namespace grace

#else

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "grace/comm/mpi/mpi_channel.h"
#include "grace/comm/mpi/mpi_session.h"
#include "grace/comm/mpi/shared_memory.h"

namespace grace {
namespace {

using Bytes = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;

// How long a rank with a fault waits for the others to hear of it: longer than a step usually takes.
constexpr std::chrono::milliseconds kFaultTimeout{10000};

class MpiTransport final : public Transport {
 public:
  MpiTransport(int rank, int size, MPI_Comm data, MPI_Comm control, std::chrono::milliseconds timeout)
      : Transport(size), session_(rank, size, data, control, timeout) {}

  ~MpiTransport() override {
    leave();
    close();
  }

  int rank() const override { return session_.rank; }
  int size() const override { return session_.size; }
  bool shares_memory_with(int rank) const override {
    return rank == session_.rank || session_.process_of_rank[static_cast<std::size_t>(rank)] >= 0;
  }

  // Finds the ranks of this machine that can read one another's memory. Collective.
  Status meet_neighbours();
  void start_thread() { session_.start_thread(); }

  void abort(std::string_view reason) override {
    const std::lock_guard lock(session_.turn);
    session_.tell(reason);
  }

 private:
  std::unique_ptr<Channel> make_channel(std::vector<int> group, Reading reading, int number) override {
    return std::make_unique<comm::MpiChannel>(session_, std::move(group), reading, number, bytes_sent_to_);
  }

  // Finalising waits for the others without a deadline, so all must be known to be here. A process that
  // leaves without it makes mpirun end the rest, and, unlike one that calls MPI_Abort, can still say what
  // went wrong.
  void leave() {
    const std::lock_guard lock(session_.turn);
    if (session_.given_up) return;
    if (!all_have_come()) {
      if (session_.fault().has_value()) return;
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
  }

  // The last barrier, with a deadline.
  bool all_have_come() {
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Ibarrier(session_.control, &request) != MPI_SUCCESS) return false;
    const Clock::time_point deadline =
        Clock::now() +
        (session_.fault().has_value() ? std::min(session_.timeout, kFaultTimeout) : session_.timeout);
    for (;;) {
      int done = 0;
      if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
      if (done != 0) return true;
      if (Clock::now() >= deadline) return false;
      sched_yield();
    }
  }

  comm::MpiSession session_;
};

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// Each rank shows a page; who reads all of what another shows, and is read by it, is its neighbour.
Status MpiTransport::meet_neighbours() {
  const auto ranks = static_cast<std::size_t>(size());
  struct Shown {
    std::int64_t process, descriptor;
    std::uint64_t capacity;
  };
  const std::string words = "rank " + std::to_string(rank());
  comm::SharedBuffer page;
  std::memcpy(page.append(words.size()), words.data(), words.size());
  const Shown mine{getpid(), page.descriptor(), page.capacity()};
  Bytes told(sizeof mine);
  std::memcpy(told.data(), &mine, sizeof mine);
  const Bytes place = bytes_of(comm::place_of_this_process());
  told.insert(told.end(), place.begin(), place.end());
  const std::vector<Bytes> all = GRACE_TRY(all_gather(told));
  Bytes read(ranks);
  std::vector<int> processes(ranks, -1);
  for (std::size_t r = 0; r < ranks; ++r) {
    if (std::cmp_equal(r, rank()) || place.empty() || all[r].size() != told.size() ||
        !std::equal(place.begin(), place.end(), all[r].begin() + sizeof mine))
      continue;
    Shown theirs;
    std::memcpy(&theirs, all[r].data(), sizeof theirs);
    comm::SharedView view;
    const std::string expected = "rank " + std::to_string(r);
    const auto seen = view.look(static_cast<int>(theirs.process), static_cast<int>(theirs.descriptor),
                                theirs.capacity, expected.size());
    if (seen.size() != expected.size() || std::memcmp(seen.data(), expected.data(), seen.size()) != 0)
      continue;
    read[r] = std::byte{1};
    processes[r] = static_cast<int>(theirs.process);
  }
  const std::vector<Bytes> reads = GRACE_TRY(all_gather(read));
  for (std::size_t r = 0; r < ranks; ++r)
    if (reads[r].size() == ranks && reads[r][static_cast<std::size_t>(rank())] == std::byte{1})
      session_.process_of_rank[r] = processes[r];
  return {};
}

}  // namespace

Result<std::unique_ptr<Transport>> make_mpi_transport(int* argc, char*** argv,
                                                      std::chrono::milliseconds timeout, Progress progress) {
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (initialised != 0)
    return internal_error("transport mpi: MPI is initialised already; it can be only once in a process");
  const int wanted = progress == Progress::kThread ? MPI_THREAD_SERIALIZED : MPI_THREAD_FUNNELED;
  int level = MPI_THREAD_SINGLE;
  if (MPI_Init_thread(argc, argv, wanted, &level) != MPI_SUCCESS || level < wanted)
    return internal_error("transport mpi: MPI_Init_thread gave level " + std::to_string(level) + ", needs " +
                          std::to_string(wanted));
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
  auto transport = std::make_unique<MpiTransport>(rank, size, data, control, timeout);
  GRACE_TRY(transport->meet_neighbours());
  if (progress == Progress::kThread) transport->start_thread();
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace grace

#endif  // GRACE_WITH_MPI
