#include "supervise.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "job_process.h"
#include "rank_report.h"

namespace grace::app {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kTick{50};
// No look counts for more silence than this: when this process was suspended, or the whole machine was,
// nobody else was silent.
constexpr milliseconds kMostPerLook{250};
constexpr milliseconds kKillTime{2000};       // what ending everybody may take of the deadline
constexpr milliseconds kStartLimit{60000};    // mpirun may reach other machines first
constexpr milliseconds kLeastStartGap{3000};  // between the first rank's hello and the last's
constexpr milliseconds kFaultGrace{2000};     // for ranks to leave in order once one told of a fault
constexpr milliseconds kDeathGrace{3000};  // for mpirun, which knows how a dead rank ended, to end the rest
constexpr milliseconds kKnownDeathGrace{1000};  // where we know as well; a death during the start may hang it
constexpr milliseconds kTermGrace{1500};        // for mpirun to end by itself
constexpr std::size_t kMostPlain = 1 << 20;     // of standard error kept
constexpr int kMostRanks = 1 << 16;

// glibc 2.36 declares these without C linkage.
int pidfd_of(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }
void send_signal(int pidfd, int number) { syscall(SYS_pidfd_send_signal, pidfd, number, nullptr, 0); }

milliseconds silence_limit(milliseconds deadline) { return std::max(deadline - kKillTime, deadline / 2); }

struct Rank {
  bool heard = false, done = false, gone = false;
  pid_t pid = -1;   // -1: on another machine
  OwnedFd process;  // open: on this machine
  int status = 0;   // as wait gives it, where it could be seen
  int death = 0;    // 1: the first to go
  milliseconds silent{0}, dead{0};
  std::optional<Error> fault;
  int fault_order = 0;
};

std::string signal_name(int number) {
  const char* name = sigabbrev_np(number);
  return name != nullptr ? fmt::format("signal {} (SIG{})", number, name) : fmt::format("signal {}", number);
}

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

// Standard error, told apart: what Open MPI explains stands between lines of dashes; what it traces begins
// with
// "[host:pid] "; the rest are the ranks' own words.
struct Said {
  std::string own, trace;
  std::vector<std::string> explained;
};
Said told_apart(std::string_view text) {
  Said said;
  bool inside = false;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end);
    if (line.starts_with("--------------------------------------------------")) {
      inside = !inside;
      if (inside) said.explained.emplace_back();
    } else if (inside) {
      said.explained.back() += line;
    } else {
      (line.starts_with('[') || line.starts_with("mpirun: ") ? said.trace : said.own) += line;
    }
  }
  return said;
}

// The rank that mpirun saw end badly before all others, on whatever machine, and how: with state_base_verbose
// it says
// `[vm:256] [[22,0],0] ACTIVATE PROC [[22,1],2] STATE EXITED WITH NON-ZERO STATUS AT ...`.
struct Blame {
  int rank = -1;
  std::string state;
};
Blame blame_in(std::string_view trace) {
  constexpr std::string_view kProc = "ACTIVATE PROC [[", kState = " STATE ";
  for (std::size_t at = 0; (at = trace.find(kProc, at)) != std::string_view::npos; at += kProc.size()) {
    const std::string line(trace.substr(at, std::min(trace.find('\n', at), trace.size()) - at));
    const std::size_t state = line.find(kState);
    int job = 0, rank = 0;  // job 0 is mpirun and its daemons
    if (state == std::string::npos ||
        std::sscanf(line.c_str(), "ACTIVATE PROC [[%*d,%d],%d]", &job, &rank) != 2 || job == 0)
      continue;
    Blame blame{rank, line.substr(state + kState.size())};
    blame.state.resize(std::min(blame.state.find(" AT "), blame.state.size()));
    for (const char* bad : {"NON-ZERO", "SIGNAL", "WITHOUT SYNC", "ABORT", "FAIL", "HEARTBEAT"})
      if (blame.state.find(bad) != std::string::npos) return blame;
  }
  return {};
}

// One line for want of a better cause: the last that a rank said, else the first of Open MPI's explanations
// that is not about the end that we know of already.
std::string best_words(const Said& said) {
  std::string words;
  for (std::string_view text = said.own; !text.empty();) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end);
    if (line.starts_with("grace: ")) line.remove_prefix(7);
    if (line.find_first_not_of(" \t\r\n") != std::string_view::npos) words = line;
  }
  for (std::size_t i = 0; i < said.explained.size() && words.empty(); ++i) {
    const std::string& text = said.explained[i];
    if (!text.starts_with("mpirun ") && !text.starts_with("Primary job")) words = text;
  }
  std::string line;  // whatever a dying process wrote, a terminal gets text
  for (const char c : words) {
    const bool blank = c == ' ' || std::iscntrl(static_cast<unsigned char>(c)) != 0;
    if (!blank) line += c;
    if (blank && !line.empty() && line.back() != ' ') line += ' ';
  }
  line.resize(std::min<std::size_t>(line.size(), 300));
  while (line.ends_with(' ')) line.pop_back();
  return line;
}

// What this process reads, until there is no more or nobody to read it.
void hand_on_input(OwnedFd to) {
  std::array<char, 4096> buffer;
  for (ssize_t bytes = 0; (bytes = read(STDIN_FILENO, buffer.data(), buffer.size())) > 0;)
    if (!write_all(to.get(), {buffer.data(), static_cast<std::size_t>(bytes)})) return;
}

class Supervisor {
 public:
  Supervisor(JobProcess process, const SuperviseOptions& options, OwnedFd signals)
      : process_(std::move(process)),
        options_(options),
        signals_(std::move(signals)),
        epoll_(epoll_create1(EPOLL_CLOEXEC)),
        mpirun_(pidfd_of(process_.pid())),
        space_(process_space()),
        limit_(silence_limit(options.deadline)) {
    for (const int fd : {signals_.get(), process_.out(), process_.err()}) watch(fd, kNoRank);
    watch(mpirun_.get(), kMpirun);
    for (int r = 0; r < options.ranks; ++r) ranks_[r];
  }

  Result<int> run() {
    Clock::time_point before = Clock::now();
    while (!process_.status().has_value()) {
      look();
      const Clock::time_point now = Clock::now();
      const auto passed = std::chrono::duration_cast<milliseconds>(now - before);
      before += passed;
      if (ending_.has_value())
        press_on(now);
      else if (judge(std::min(passed, kMostPerLook)))
        end(now);
    }
    drain();
    end_orphans();
    return verdict(*process_.status());
  }

 private:
  static constexpr std::uint64_t kNoRank = ~std::uint64_t{0}, kMpirun = kNoRank - 1;

  void watch(int fd, std::uint64_t rank) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = rank;
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
  }

  // Waits for at most a tick and takes in whatever there is. Deaths come in the order in which they happened,
  // for epoll keeps its ready list so: the first is the cause, the rest mpirun's doing.
  void look() {
    std::array<epoll_event, 64> events{};
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 static_cast<int>(kTick.count()));
    for (int e = 0; e < count; ++e) {
      const std::uint64_t rank = events[static_cast<std::size_t>(e)].data.u64;
      if (rank == kMpirun && mpirun_death_ == 0)
        mpirun_death_ = ++deaths_;
      else if (rank < kMpirun)
        has_gone(ranks_[static_cast<int>(rank)]);
    }
    drain();
    signalfd_siginfo info{};
    while (read(signals_.get(), &info, sizeof info) == sizeof info)
      if (info.ssi_signo != SIGCHLD && signal_ == 0) signal_ = static_cast<int>(info.ssi_signo);
  }

  void has_gone(Rank& rank) {
    if (rank.gone) return;
    rank.gone = true;
    rank.death = ++deaths_;
    rank.status = status_of_ended(rank.pid);  // mpirun may be quicker
    if (rank.process.is_open()) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, rank.process.get(), nullptr);
  }

  void drain() {
    take(process_.out(), out_);
    take(process_.err(), err_);
    for (std::size_t mark = 0; (mark = err_.find(kReportMark)) != std::string::npos;) {
      const std::size_t end = err_.find('\n', mark);
      if (end == std::string::npos) break;
      if (const auto report = parse_report(std::string_view(err_).substr(mark + 1, end - mark - 1)))
        take_in(*report);
      err_.erase(mark, end + 1 - mark);
    }
    if (err_.size() > kMostPlain) err_.erase(0, err_.size() - kMostPlain);
    if (!options_.whole_output_only && signal_ == 0)
      pass_on(options_.talks ? out_.size() : out_.rfind('\n') + 1);
  }

  void take(int fd, std::string& into) {
    std::array<char, 1 << 16> buffer;
    for (ssize_t bytes = 0; (bytes = read(fd, buffer.data(), buffer.size())) > 0;)
      into.append(buffer.data(), static_cast<std::size_t>(bytes));
  }

  void pass_on(std::size_t bytes) {
    if (bytes == 0) return;
    if (!write_all(STDOUT_FILENO, std::string_view(out_).substr(0, bytes)) && !cannot_print_)
      cannot_print_ = io_error(fmt::format("standard output: {}", std::strerror(errno)));
    out_.erase(0, bytes);
  }

  void take_in(const RankReport& report) {
    if (report.rank >= (options_.ranks > 0 ? options_.ranks : kMostRanks)) return;
    Rank& rank = ranks_[report.rank];
    rank.heard = true;
    rank.silent = milliseconds(0);
    if (report.kind == ReportKind::kHello) meet(report, rank);
    if (report.kind == ReportKind::kDone) rank.done = true;
    if (report.kind == ReportKind::kFault && !rank.fault.has_value()) {
      const int kind = std::clamp(report.number, 0, static_cast<int>(ErrorKind::kInternal));
      rank.fault = Error{static_cast<ErrorKind>(kind), report.text};
      rank.fault_order = ++faults_;
    }
  }

  // A process id is watched by a descriptor, which stays that process's, however ids are used again.
  void meet(const RankReport& report, Rank& rank) {
    if (report.text != space_ || rank.pid > 0) return;
    rank.pid = report.number;
    rank.process = OwnedFd(pidfd_of(rank.pid));
    if (rank.process.is_open())
      watch(rank.process.get(), static_cast<std::uint64_t>(report.rank));
    else if (errno == ESRCH)
      has_gone(rank);
  }

  // Adds the time since the last look to every clock; true when the job is to be ended.
  bool judge(milliseconds passed) {
    if (signal_ != 0) return true;
    if (cannot_print_.has_value()) return set_cause(*cannot_print_);
    const bool begun = std::ranges::any_of(ranks_, [](const auto& r) { return r.second.heard; });
    if (!begun) {
      starting_ += passed;
      return starting_ > kStartLimit && set_cause(timed_out(fmt::format("mpirun: no rank began within {} s",
                                                                        kStartLimit.count() / 1000)));
    }
    if (faults_ > 0 && (since_fault_ += passed) > std::min(kFaultGrace, options_.deadline / 4)) return true;
    for (auto& [number, rank] : ranks_) {
      if (rank.gone) {
        if (rank.done) continue;
        if (rank.status == 0) rank.status = status_of_ended(rank.pid);
        if ((rank.dead += passed) > (rank.status == 0 ? kDeathGrace : kKnownDeathGrace)) return true;
      } else if (!rank.done || rank.process.is_open()) {
        rank.silent += passed;
      }
    }
    return judge_silence();
  }

  bool judge_silence() {
    const auto is_silent = [&](const Rank& rank) {
      return rank.silent > (rank.heard ? limit_ : std::max(limit_, kLeastStartGap));
    };
    // Of several that are silent one that is stopped is the cause: the others may be cut off with it.
    const Rank* blamed = nullptr;
    int number = 0;
    for (const auto& [n, rank] : ranks_) {
      if (!is_silent(rank)) continue;
      const bool stopped = rank.pid > 0 && state_of(rank.pid) == 'T';
      if (blamed != nullptr && !stopped) continue;
      blamed = &rank;
      number = n;
      if (stopped) break;
    }
    if (blamed == nullptr) return false;
    const double seconds = std::chrono::duration<double>(blamed->silent).count();
    if (state_of(process_.pid()) == 'T')
      return set_cause(timed_out(fmt::format("mpirun: is stopped; no rank was heard for {:.1f} s", seconds)));
    const char* how = !blamed->heard ? "did not begin" : "does not answer";
    if (blamed->pid > 0 && state_of(blamed->pid) == 'T') how = "is stopped and does not answer";
    return set_cause(
        timed_out(fmt::format("rank {}: {}; not heard for {:.1f} s (--deadline {:g})", number, how, seconds,
                              std::chrono::duration<double>(options_.deadline).count())));
  }

  bool set_cause(Error error) {
    if (!cause_.has_value()) cause_ = std::move(error);
    return true;
  }

  // mpirun ends ranks on other machines when it is told to; those here go at once, stopped ones too.
  void end(Clock::time_point now) {
    ending_ = now;
    process_.signal(SIGTERM);
    process_.signal(SIGCONT);
    for (const auto& [number, rank] : ranks_)
      if (rank.process.is_open() && !rank.gone) send_signal(rank.process.get(), SIGKILL);
  }
  void press_on(Clock::time_point now) {
    if (now - *ending_ > kTermGrace) process_.signal_group(SIGKILL);
  }

  // The fault to tell of: one that is no other rank's consequence, else the first that was heard.
  const Error* told_fault() const {
    const Rank* best = nullptr;
    const auto weight = [](const Rank& rank) {
      return std::pair(rank.fault->kind == ErrorKind::kPeerLost || rank.fault->kind == ErrorKind::kTimeout,
                       rank.fault_order);
    };
    for (const auto& [number, rank] : ranks_)
      if (rank.fault.has_value() && (best == nullptr || weight(rank) < weight(*best))) best = &rank;
    return best == nullptr ? nullptr : &*best->fault;
  }

  // Says whose fault it is, where the message does not and it is not everybody's.
  Error named(const Error& fault) const {
    if (fault.message.starts_with("rank ")) return fault;
    int owner = -1, owners = 0;
    for (const auto& [number, rank] : ranks_)
      if (rank.fault.has_value() && rank.fault->message == fault.message && owners++ == 0) owner = number;
    if (owners > 1 && owners == static_cast<int>(ranks_.size())) return fault;
    return {fault.kind, fmt::format("rank {}: {}", owner, fault.message)};
  }

  Result<int> verdict(int status) {
    if (signal_ != 0) {
      std::fprintf(stderr, "grace: ended by %s; no rank is left\n", signal_name(signal_).c_str());
      return 128 + signal_;
    }
    if (cause_.has_value()) return *cause_;
    if (const Error* fault = told_fault()) return named(*fault);
    const Said said = told_apart(err_);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    const Error by_signal = peer_lost(fmt::format("mpirun: killed by {}", signal_name(code - 128)));
    // Ranks may be gone before it is; crashes of its own follow from a rank's.
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && !ending_.has_value()) return by_signal;
    const Blame blame = blame_in(said.trace);
    const int culprit = first_to_leave(code, blame);
    if (culprit >= 0) return how_it_left(culprit, WIFEXITED(status) ? code : 0, blame, best_words(said));
    if (WIFSIGNALED(status)) return by_signal;
    const bool some_done = std::ranges::any_of(ranks_, [](const auto& r) { return r.second.done; });
    if (!some_done)
      return peer_lost(fmt::format("mpirun: ended with exit code {}: {}", code, best_words(said)));
    write_all(STDERR_FILENO, said.own);
    pass_on(out_.size());
    if (cannot_print_.has_value()) return *cannot_print_;
    return code;
  }

  // The rank that left without a word and took the others down, -1 for none.
  int first_to_leave(int code, const Blame& blame) const {
    const auto blamed = ranks_.find(blame.rank);  // one that did not come to report, or is elsewhere
    if (code != 0 && blamed != ranks_.end() && blamed->second.pid < 0 && !blamed->second.done)
      return blame.rank;
    int number = -1, death = mpirun_death_;  // what goes after mpirun goes because of it
    for (const auto& [n, rank] : ranks_)
      if (rank.gone && (death == 0 || rank.death < death)) {
        death = rank.death;
        number = n;
      }
    return number < 0 || ranks_.at(number).done ? -1 : number;
  }

  // code: mpirun's, which is that of the first rank that failed; 0 when it is not known.
  Error how_it_left(int number, int code, const Blame& blame, const std::string& words) const {
    const int status = ranks_.at(number).status;
    if (status != 0)
      code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    else if (ending_.has_value())  // our own signals do not count
      code = 0;
    const bool is_blamed = blame.rank == number;
    std::string cause = "left before the others, without an error";
    if (is_blamed && blame.state.find("WITHOUT SYNC") != std::string::npos && status == 0)
      code = 0;  // mpirun makes it 1
    if (code > 128 && sigabbrev_np(code - 128) != nullptr)
      cause = fmt::format("killed by {}", signal_name(code - 128));
    else if (code != 0)
      cause = fmt::format("left early with exit code {}", code);
    else if (is_blamed && blame.state.find("SIGNAL") != std::string::npos)
      cause = "killed by a signal";
    if (!words.empty()) cause += fmt::format(" ({})", words);
    return peer_lost(fmt::format("rank {}: {}", number, cause));
  }

  JobProcess process_;
  const SuperviseOptions options_;
  OwnedFd signals_, epoll_, mpirun_;
  const std::string space_;
  const milliseconds limit_;
  std::map<int, Rank> ranks_;
  std::string out_, err_;  // not passed on yet
  int deaths_ = 0, mpirun_death_ = 0, faults_ = 0, signal_ = 0;
  milliseconds starting_{0}, since_fault_{0};
  std::optional<Error> cause_, cannot_print_;
  std::optional<Clock::time_point> ending_;
};

}  // namespace

milliseconds beat_period(milliseconds deadline) {
  return std::clamp(silence_limit(deadline) / 8, milliseconds(20), milliseconds(1000));
}

Result<int> supervise(std::vector<std::string> words, const SuperviseOptions& options) {
  sigset_t taken;
  sigemptyset(&taken);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&taken, number);
  sigprocmask(SIG_BLOCK, &taken, nullptr);
  std::signal(SIGPIPE, SIG_IGN);  // a reader that leaves is an error to end the job by, not our death
  OwnedFd signals(signalfd(-1, &taken, SFD_NONBLOCK | SFD_CLOEXEC));
  JobProcess process = GRACE_TRY(JobProcess::start(std::move(words), options.talks));
  // Whoever reads may wait for ever; it ends with this process.
  if (options.talks) std::thread(hand_on_input, process.take_in()).detach();
  return Supervisor(std::move(process), options, std::move(signals)).run();
}

}  // namespace grace::app
