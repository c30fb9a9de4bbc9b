// Strategies run in turn, round after round, and what each round gave.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench_contenders.h"
#include "grace/runtime/near_ties.h"
#include "recorded_run.h"
#include "run_summary.h"

namespace grace::app {

struct Round {
  RunSummary sum;
  double prefill_s = 0, decode_s = 0;  // by the clock
  std::int64_t new_tokens = 0;
};
struct Measured {
  std::string strategy;
  Dispatch dispatch = Dispatch::kTwoStage;
  bool lossy = false;  // its plan changes what the gate chooses, so that it may write another text
  std::vector<Round> rounds;
  TextDifference difference;  // from the reference; the least explained of all rounds
  std::string outputs_hash;   // of the last round's new tokens: the same for the same text
  RunRecord last;             // of the last round
};

struct Measurements {
  std::vector<Measured> of_contender;
  double near_tie_bound = 0;

  // Of all that are not lossy.
  bool is_same_text() const;
  bool is_explained() const;  // the same text, but for near-ties
};

// The reference of all texts is the first round of the first strategy that is not lossy, which runs first.
// Collective. Errors: those of the engine and of the transport.
Result<Measurements> measure(Ranks& ranks, const BenchJob& bench, const BenchFlags& flags,
                             const std::vector<Contender>& contenders);

}  // namespace grace::app
