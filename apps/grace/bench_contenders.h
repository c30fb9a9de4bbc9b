// Who takes part in grace bench, and in what: the job, the prompts, and a plan and an exchange for each
// strategy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench_flags.h"
#include "grace/base/result.h"
#include "grace/trace/trace.h"
#include "launch.h"

namespace grace::app {

// One column: a plan and how its tokens travel.
struct Contender {
  std::string name;
  Plan plan;
  Dispatch dispatch = Dispatch::kTwoStage;
};

// What all of them run.
struct BenchJob {
  Job job;
  std::vector<std::vector<std::int32_t>> prompts;
  std::optional<Trace> learned;  // to plan from, where no text has to be profiled first
};

// Reads and checks what the flags name. Errors: those of the files; invalid_input where they do not fit
// together.
Result<BenchJob> prepare_bench(const BenchFlags& flags);

// In the flags' order. The default placement needs no plan, --plan serves the strategy it was made by, a plan
// kept in --plans is taken from there, the rest are planned from the routing, or from the text. Collective.
Result<std::vector<Contender>> contenders_of(Ranks& ranks, const BenchJob& bench, const BenchFlags& flags);

}  // namespace grace::app
