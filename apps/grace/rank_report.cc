#include "rank_report.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <thread>

namespace grace::app {
namespace {

constexpr std::string_view kWord = "grace-rank";
constexpr std::array<std::string_view, 4> kKinds = {"hello", "beat", "fault", "done"};
constexpr std::size_t kMostText = 2000;  // with the rest less than PIPE_BUF, 4096

// Takes the next word of `line`, up to a space.
std::string_view take_word(std::string_view& line) {
  const std::size_t end = std::min(line.find(' '), line.size());
  const std::string_view word = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return word;
}

std::optional<int> number_in(std::string_view word) {
  int number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return number;
}

class StderrVoice final : public RankVoice {
 public:
  StderrVoice(int rank, std::chrono::milliseconds period) : rank_(rank) {
    say(ReportKind::kHello, getpid(), process_space());
    // Signals are the main thread's.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    beating_ = std::jthread([this, period](const std::stop_token& stop) { beat(stop, period); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  void fault(const Error& error) override {
    say(ReportKind::kFault, static_cast<int>(error.kind), error.message);
  }
  void done() override { say(ReportKind::kDone, 0, ""); }

 private:
  void beat(const std::stop_token& stop, std::chrono::milliseconds period) {
    std::unique_lock lock(waiting_);
    while (!stopped_.wait_for(lock, stop, period, [&] { return stop.stop_requested(); }))
      if (!stop.stop_requested()) say(ReportKind::kBeat, 0, "");
  }
  // One write, so that lines stay whole; a full pipe loses the report rather than hold up the rank.
  void say(ReportKind kind, int number, std::string_view text) {
    const std::string line = line_of({rank_, kind, number, std::string(text)});
    pollfd ready = {STDERR_FILENO, POLLOUT, 0};
    const int patience_ms = kind == ReportKind::kBeat ? 0 : 1000;
    if (poll(&ready, 1, patience_ms) != 1 || (ready.revents & POLLOUT) == 0) return;
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
  }

  const int rank_;
  std::mutex waiting_;
  std::condition_variable_any stopped_;
  std::jthread beating_;  // last: ends before what it uses
};

}  // namespace

std::string line_of(const RankReport& report) {
  std::string text = report.text.substr(0, kMostText);
  for (char& c : text)
    if (c == '\n' || c == '\r' || c == kReportMark) c = ' ';
  return fmt::format("{}{} {} {} {} {}\n", kReportMark, kWord, report.rank,
                     kKinds[static_cast<std::size_t>(report.kind)], report.number, text);
}

std::optional<RankReport> parse_report(std::string_view line) {
  if (take_word(line) != kWord) return std::nullopt;
  const std::optional<int> rank = number_in(take_word(line));
  const std::string_view kind = take_word(line);
  const std::optional<int> number = number_in(take_word(line));
  if (!rank.has_value() || *rank < 0 || !number.has_value()) return std::nullopt;
  for (std::size_t k = 0; k < kKinds.size(); ++k)
    if (kKinds[k] == kind) return RankReport{*rank, static_cast<ReportKind>(k), *number, std::string(line)};
  return std::nullopt;
}

std::string process_space() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 256> space{};
  const ssize_t length = readlink("/proc/self/ns/pid", space.data(), space.size());
  return boot + "/" + std::string(space.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
}

std::unique_ptr<RankVoice> RankVoice::start() {
  const char* period = std::getenv(kSupervisedVariable);
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (period == nullptr || rank == nullptr) return nullptr;
  const std::optional<int> period_ms = number_in(period);
  const std::optional<int> my_rank = number_in(rank);
  if (!period_ms.has_value() || *period_ms < 1 || !my_rank.has_value()) return nullptr;
  return std::make_unique<StderrVoice>(*my_rank, std::chrono::milliseconds(*period_ms));
}

}  // namespace grace::app
