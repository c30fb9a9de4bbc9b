// What the channels of one process share: MPI's communicators, one fault, and whose turn it is to call MPI.
#pragma once

#ifdef GRACE_WITH_MPI

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "grace/base/result.h"

namespace grace::comm {

class MpiChannel;

inline constexpr int kFaultTag = 1;

// MPI is called by one thread at a time, the one that holds `turn`.
class MpiSession {
 public:
  MpiSession(int rank, int size, MPI_Comm data, MPI_Comm control, std::chrono::milliseconds timeout);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  // From now on a thread of its own moves messages while the rank computes. MPI must have been asked for it.
  void start_thread();

  // The rest: REQUIRES turn.
  Error fail(Error error);
  // Whether another rank has told that it leaves; fault() then says so.
  bool look_for_fault();
  const std::optional<Error>& fault() const { return fault_; }
  // Tells all others, once.
  void tell(std::string_view reason);
  void begun(MpiChannel& channel);
  void ended(MpiChannel& channel);
  // Memory that MPI may still write into although nobody waits any more.
  void keep(std::shared_ptr<void> memory) { kept_.push_back(std::move(memory)); }
  // What others may still have to look for, of a channel that is gone: kept until an exchange of everyone
  // that begins later has ended, for nobody comes to that one before it has found it.
  void retire(std::shared_ptr<void> memory) { retired_.push_back(std::move(memory)); }
  void everyone_begins() {
    std::move(retired_.begin(), retired_.end(), std::back_inserter(retiring_)), retired_.clear();
  }
  void everyone_ended() { retiring_.clear(); }
  // The thread stands back while the rank itself waits.
  void attend(bool here);

  const int rank, size;
  const MPI_Comm data;
  const MPI_Comm control;  // faults and the end, so that they never meet the data
  const std::chrono::milliseconds timeout;
  std::mutex turn;
  // MPI still reads and writes the memory of an exchange that was given up: this process cannot go on with
  // MPI.
  bool given_up = false;
  // [size] Processes of this machine whose memory can be looked at, and that can look at this one's; -1 for
  // the others.
  std::vector<int> process_of_rank;

 private:
  void run_thread();

  std::optional<Error> fault_;
  bool told_ = false;
  std::string reason_;
  std::vector<MPI_Request> telling_;
  std::vector<MpiChannel*> under_way_;
  std::vector<std::shared_ptr<void>> kept_, retired_, retiring_;
  std::condition_variable changed_;
  bool attended_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace grace::comm

#endif  // GRACE_WITH_MPI
