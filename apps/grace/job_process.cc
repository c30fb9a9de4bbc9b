#include "job_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

namespace grace::app {
namespace {

constexpr const char* kShm = "/dev/shm";
constexpr std::string_view kPrefix = "grace-job-";
// Younger folders may not be locked yet.
constexpr auto kLeastAge = std::chrono::minutes(1);

OwnedFd locked(const std::filesystem::path& folder) {
  OwnedFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY));
  if (fd.is_open() && flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return {};
  return fd;
}

void remove_abandoned() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(kShm, error)) {
    if (!entry.path().filename().string().starts_with(kPrefix)) continue;
    const auto changed = std::filesystem::last_write_time(entry.path(), error);
    if (error || std::filesystem::file_time_type::clock::now() - changed < kLeastAge) continue;
    if (locked(entry.path()).is_open()) std::filesystem::remove_all(entry.path(), error);
  }
}

struct Pipe {
  OwnedFd read, write;
};
std::optional<Pipe> make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return std::nullopt;
  return Pipe{OwnedFd(ends[0]), OwnedFd(ends[1])};
}

// In the child, which may only call what is safe after fork. Returns when it failed. in: -1 for none.
void become(char** arguments, int in, int out, int err, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_IGN);  // mpirun writes to ranks that may be gone; it gives them the default back
  if (in < 0) in = open("/dev/null", O_RDONLY);
  if (in >= 0) dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  execvp(arguments[0], arguments);
}

std::vector<pid_t> children() {
  std::vector<pid_t> all;
  std::ifstream list(fmt::format("/proc/self/task/{}/children", getpid()));
  for (pid_t child = 0; list >> child;) all.push_back(child);
  return all;
}

}  // namespace

void OwnedFd::reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

ScratchFolder::ScratchFolder() {
  remove_abandoned();
  std::string name = fmt::format("{}/{}XXXXXX", kShm, kPrefix);
  if (mkdtemp(name.data()) == nullptr) return;
  path_ = name;
  lock_ = locked(path_);
}

ScratchFolder::~ScratchFolder() {
  std::error_code error;
  if (!path_.empty()) std::filesystem::remove_all(path_, error);
}

Result<JobProcess> JobProcess::start(std::vector<std::string> words, bool takes_input) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const auto cannot = [&](int code) {
    return unsupported(fmt::format("--transport mpi: cannot start {}: {}", words[0], std::strerror(code)));
  };
  std::optional<Pipe> in, out = make_pipe(), err = make_pipe(), failure = make_pipe();
  if (takes_input) in = make_pipe();
  if ((takes_input && !in) || !out || !err || !failure) return cannot(errno);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t parent = getpid();
  JobProcess process;
  process.pid_ = fork();
  if (process.pid_ < 0) return cannot(errno);
  if (process.pid_ == 0) {
    become(arguments.data(), in ? in->read.get() : -1, out->write.get(), err->write.get(), parent);
    const int code = errno;
    [[maybe_unused]] const ssize_t told = write(failure->write.get(), &code, sizeof code);
    _exit(127);
  }
  setpgid(process.pid_, process.pid_);  // whoever comes first, child or parent
  failure->write.reset();
  int code = 0;
  if (read(failure->read.get(), &code, sizeof code) == sizeof code) {
    waitpid(process.pid_, nullptr, 0);
    return cannot(code);
  }
  if (in) process.in_ = std::move(in->write);
  process.out_ = std::move(out->read);
  process.err_ = std::move(err->read);
  fcntl(process.out_.get(), F_SETFL, O_NONBLOCK);
  fcntl(process.err_.get(), F_SETFL, O_NONBLOCK);
  return process;
}

std::optional<int> JobProcess::status() {
  int status = 0;
  if (!status_.has_value() && waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
  return status_;
}

void JobProcess::signal(int number) const { kill(pid_, number); }
void JobProcess::signal_group(int number) const { kill(-pid_, number); }

void end_orphans() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  for (;;) {
    for (const pid_t child : children()) kill(child, SIGKILL);
    pid_t ended = 0;
    while ((ended = waitpid(-1, nullptr, WNOHANG)) > 0) {
    }
    if (ended < 0 || std::chrono::steady_clock::now() >= deadline) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

namespace {

// What follows the name in /proc/PID/stat, from the state on.
std::string stat_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(") ");
  return name_end == std::string::npos ? "" : line.substr(name_end + 2);
}

}  // namespace

char state_of(pid_t pid) {
  const std::string stat = stat_of(pid);
  return stat.empty() ? '?' : stat[0];
}

int status_of_ended(pid_t pid) {
  const std::string stat = stat_of(pid);
  const std::size_t last = stat.find_last_of(' ');  // the last field is the exit code, as wait gives it
  if (!stat.starts_with('Z') || last == std::string::npos) return 0;
  return std::atoi(stat.c_str() + last);
}

}  // namespace grace::app
