// A channel over MPI. One message each way per pair: its first part carries a header and as much as fits, the
// rest follows in chunks, so that a short message is one message and a long one waits for nobody's consent.
#pragma once

#ifdef GRACE_WITH_MPI

#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "grace/comm/channel.h"
#include "grace/comm/mpi/mpi_session.h"
#include "grace/comm/mpi/shared_memory.h"

namespace grace::comm {

class MpiChannel final : public Channel {
 public:
  // number: -1 for the one of everyone's calls, else as Transport::open counts. The session must outlive it.
  MpiChannel(MpiSession& session, std::vector<int> group, Reading reading, int number,
             std::vector<std::int64_t>& bytes_sent_to);
  ~MpiChannel() override;

  Result<bool> poll() override;
  Status finish() override;
  bool has_come(std::size_t i) const override { return missing_parts_[i] == 0; }

  // Takes and gives what can be without waiting. REQUIRES: the session's turn.
  void advance();

 private:
  struct Header;
  // What a request under way is for: a part sent to, or received from, the group's rank `peer`.
  struct Part {
    enum Kind { kSent, kFirst, kRest } kind;
    std::size_t peer;
    std::size_t bytes;  // that must come
  };
  static constexpr std::size_t kUnknown = ~std::size_t{0};  // how many parts are missing, before the first

  Status send() override;
  void send_parts(std::size_t peer);
  void expect_first(std::size_t peer);
  Status take(const Part& part, const MPI_Status& status);
  Status take_first(std::size_t peer, std::size_t bytes);
  MPI_Request* next(Part part);
  // Of a request that MPI refused.
  Error refused(const Part& part, int code) const;
  bool shares_with(std::size_t peer) const;
  int tag(bool first) const;

  MpiSession& session_;
  Reading reading_;
  int number_;
  std::uint64_t exchanges_ = 0;
  std::vector<std::shared_ptr<OwnBuffer>> incoming_;       // [group]
  std::vector<std::unique_ptr<SharedView>> views_;         // [group]
  std::vector<std::shared_ptr<OwnBuffer>> announcements_;  // [group] headers of what is read in place
  std::vector<std::size_t> missing_parts_;                 // [group] kUnknown before the first came
  std::vector<MPI_Request> requests_;
  std::vector<Part> parts_;  // of each request
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::size_t active_ = 0;  // requests
  std::chrono::steady_clock::time_point moved_;
};

}  // namespace grace::comm

#endif  // GRACE_WITH_MPI
