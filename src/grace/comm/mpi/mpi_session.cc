#include "grace/comm/mpi/mpi_session.h"

#ifdef GRACE_WITH_MPI

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>

#include "grace/comm/call.h"
#include "grace/comm/mpi/mpi_channel.h"

namespace grace::comm {
namespace {

using Clock = std::chrono::steady_clock;

// So short that it is sent at once, whether or not anybody waits for it.
constexpr std::size_t kMaxReasonBytes = 1000;
constexpr std::chrono::milliseconds kTellTimeout{1000};
// Between two looks of the thread: short against what a socket's buffer holds, long against a look.
constexpr std::chrono::microseconds kThreadNap{100};

// Where ranks have real-time priority a thread of the same one would wait for their turn to end.
void be_woken_at_once() {
  sched_param priority{};
  int policy = SCHED_OTHER;
  if (pthread_getschedparam(pthread_self(), &policy, &priority) != 0 || policy == SCHED_OTHER) return;
  priority.sched_priority = std::min(priority.sched_priority + 1, sched_get_priority_max(policy));
  pthread_setschedparam(pthread_self(), policy, &priority);
}

}  // namespace

MpiSession::MpiSession(int rank_, int size_, MPI_Comm data_, MPI_Comm control_,
                       std::chrono::milliseconds timeout_)
    : rank(rank_), size(size_), data(data_), control(control_), timeout(timeout_) {
  process_of_rank.assign(static_cast<std::size_t>(size), -1);
}

MpiSession::~MpiSession() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(turn);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void MpiSession::start_thread() {
  thread_ = std::thread([this] { run_thread(); });
}

void MpiSession::run_thread() {
  be_woken_at_once();
  std::unique_lock lock(turn);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || (!attended_ && !under_way_.empty()); });
    if (stop_) return;
    for (std::size_t i = 0; i < under_way_.size(); ++i) under_way_[i]->advance();
    lock.unlock();
    std::this_thread::sleep_for(kThreadNap);
    lock.lock();
  }
}

void MpiSession::begun(MpiChannel& channel) {
  under_way_.push_back(&channel);
  changed_.notify_all();
}

void MpiSession::ended(MpiChannel& channel) { std::erase(under_way_, &channel); }

void MpiSession::attend(bool here) {
  attended_ = here;
  if (!here) changed_.notify_all();
}

Error MpiSession::fail(Error error) {
  if (!fault_.has_value()) fault_ = std::move(error);
  return *fault_;
}

bool MpiSession::look_for_fault() {
  int there = 0;
  MPI_Status status;
  MPI_Iprobe(MPI_ANY_SOURCE, kFaultTag, control, &there, &status);
  if (there == 0) return false;
  std::array<char, kMaxReasonBytes> reason{};
  MPI_Recv(reason.data(), static_cast<int>(reason.size()), MPI_BYTE, status.MPI_SOURCE, kFaultTag, control,
           &status);
  int bytes = 0;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  fail(left_with_fault(rank, status.MPI_SOURCE,
                       std::string_view(reason.data(), static_cast<std::size_t>(bytes))));
  return true;
}

void MpiSession::tell(std::string_view reason) {
  fail(peer_lost(rank_name(rank) + ": left: " + std::string(reason)));
  if (told_) return;
  told_ = true;
  reason_ = reason.substr(0, kMaxReasonBytes);
  for (int peer = 0; peer < size; ++peer)
    if (peer != rank)
      MPI_Isend(reason_.data(), static_cast<int>(reason_.size()), MPI_BYTE, peer, kFaultTag, control,
                &telling_.emplace_back(MPI_REQUEST_NULL));
  const Clock::time_point deadline = Clock::now() + kTellTimeout;
  for (int done = 0; done == 0 && Clock::now() < deadline; sched_yield())
    MPI_Testall(static_cast<int>(telling_.size()), telling_.data(), &done, MPI_STATUSES_IGNORE);
}

}  // namespace grace::comm

#endif  // GRACE_WITH_MPI
