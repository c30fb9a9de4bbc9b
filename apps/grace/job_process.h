// mpirun as a child: in a process group of its own, its output through pipes, and never there without us.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "grace/base/result.h"

namespace grace::app {

// Owner of a file descriptor; -1 is none.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OwnedFd() { reset(); }
  void reset();
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// A folder in /dev/shm for the files that MPI shares memory through and keeps its books in, so that they are
// gone with it however the job ends. Those of parents that were killed are removed by the next one.
class ScratchFolder {
 public:
  ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder();
  // Empty where /dev/shm cannot be used.
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  OwnedFd lock_;  // held by this process and, inherited, by mpirun
};

class JobProcess {
 public:
  // Starts words[0], found by PATH, with a pipe from in() for its standard input where it takes any, else an
  // empty one; no signal is blocked and SIGPIPE ignored. It gets SIGTERM when this process dies, and its
  // orphans become children of this process. Errors: unsupported when it cannot be started.
  static Result<JobProcess> start(std::vector<std::string> words, bool takes_input);

  OwnedFd take_in() { return std::move(in_); }
  int out() const { return out_.get(); }  // do not block
  int err() const { return err_.get(); }
  pid_t pid() const { return pid_; }
  // Its wait status once it has ended.
  std::optional<int> status();
  // REQUIRES: status() had none.
  void signal(int number) const;
  void signal_group(int number) const;

 private:
  JobProcess() = default;
  pid_t pid_ = -1;
  OwnedFd in_, out_, err_;
  std::optional<int> status_;
};

// Ends what was left behind to this process, and waits for it, for two seconds at most.
void end_orphans();

// The state letter of /proc/PID/stat: 'T' is stopped; '?' when there is none.
char state_of(pid_t pid);

// The wait status of a process that has ended and that its parent has not waited for yet; 0 when it cannot be
// told, or when it ended well.
int status_of_ended(pid_t pid);

}  // namespace grace::app
