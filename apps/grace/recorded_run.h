// Prompts run on all ranks, and what happened on each of them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "grace/base/result.h"
#include "grace/runtime/generate.h"
#include "launch.h"
#include "record.h"

namespace grace::app {

struct RunWanted {
  const Plan& plan;  // in place of the job's
  const std::vector<std::vector<std::int32_t>>& prompts;
  GenerateOptions generate;
  bool aligned = false;  // ranks wait for one another before each exchange
  bool spans = false;    // for a timeline
  std::function<void(std::int64_t, std::int64_t)> progress;
};

struct RecordedRun {
  RunRecord record;
  std::vector<std::vector<std::int32_t>> outputs;  // new tokens, in the order of the prompts
  std::vector<std::vector<TokenMargin>> margins;   // as outputs
};
// Errors: those of the engine and of the transport.
Result<RecordedRun> run_recorded(Ranks& ranks, const Job& job, const RunWanted& wanted);

}  // namespace grace::app
