// The parent of an MPI job: passes on what its ranks print, sees when one is killed, stops answering or
// leaves early, ends the rest in time and says in one line which rank it was and why.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "grace/base/result.h"

namespace grace::app {

struct SuperviseOptions {
  int ranks = 0;  // 0: as many as report
  // From the moment a rank falls silent to the end of this process.
  std::chrono::milliseconds deadline{10000};
  // Standard output is passed on only when the job ended well: half a JSON value is none.
  bool whole_output_only = false;
  // For a job that talks: rank 0 reads what this process reads, and its output is passed on before a line
  // ends.
  bool talks = false;
};

// Runs mpirun, as `words` say, whose ranks are this program, to its end; no process and no scratch file is
// left. Ranks on this machine are also watched by their process ids; those on others by what comes through
// mpirun. Returns the job's exit code, or 128 + n when signal n (SIGINT, SIGTERM, SIGHUP) came, said in a
// line on standard error. Errors: unsupported without mpirun; a rank's own error with its kind; peer_lost for
// a rank that died or left; timeout for one that fell silent.
Result<int> supervise(std::vector<std::string> words, const SuperviseOptions& options);

// How often a rank must beat to be judged by `deadline`.
std::chrono::milliseconds beat_period(std::chrono::milliseconds deadline);

}  // namespace grace::app
