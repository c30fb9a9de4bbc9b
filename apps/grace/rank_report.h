// What a rank tells the `grace` that started it: marked lines in the rank's standard error, the one channel
// that mpirun carries from every machine. No socket or file could be left behind, and no port has to be open.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "grace/base/result.h"

namespace grace::app {

// Stands before every report; no text of ours or of MPI's holds it.
inline constexpr char kReportMark = '\x1e';

enum class ReportKind {
  kHello,  // number: process id; text: where that number means something
  kBeat,   // still here
  kFault,  // number: the ErrorKind; text: the message
  kDone,   // the command ended as it should, MPI included
};

struct RankReport {
  int rank = 0;
  ReportKind kind = ReportKind::kBeat;
  int number = 0;
  std::string text;
};

// A line with mark and newline. Newlines and marks in the text become spaces; what is longer than 2000 bytes
// is cut, for a pipe takes as much in one piece.
std::string line_of(const RankReport& report);
// `line`: without mark and newline. Nothing when it is no report.
std::optional<RankReport> parse_report(std::string_view line);

// What process ids are unique within: this boot of this machine and this process namespace.
std::string process_space();

// Where the parent says that it listens, and how often it wants to hear: milliseconds between beats.
inline constexpr const char* kSupervisedVariable = "GRACE_SUPERVISED";

// A rank's end. Beats come from a thread of its own, so that a rank in a long computation, or one that waits
// for its turn on a crowded core, still beats: such a thread needs microseconds, and only a process that is
// stopped, gone or cut off falls silent. Thread-safe.
class RankVoice {
 public:
  // Says hello and begins to beat. Null in a process that no `grace` supervises.
  static std::unique_ptr<RankVoice> start();
  virtual ~RankVoice() = default;
  virtual void fault(const Error& error) = 0;
  virtual void done() = 0;
};

}  // namespace grace::app
