// Whether two runs say the same, and where they do not, whether rounding can have made the difference.
#pragma once

#include <cstdint>
#include <string>

#include "recorded_run.h"

namespace grace::app {

struct TextDifference {
  std::int64_t prompts = 0;    // whose texts differ
  std::int64_t near_ties = 0;  // of those, where the first token that differs was within the bound

  bool is_explained() const { return prompts == near_ties; }
};

// Up to the first token that differs the texts share everything, so only rounding can have moved it, if the
// reference's margin there is at most `bound` (near_tie_bound) times its largest |logit|; a bound of 0 is no
// excuse for anything. REQUIRES: both ran the same prompts, greedily.
TextDifference difference(const RecordedRun& reference, const RecordedRun& run, double bound);

// "same text", or "3 prompts differ, 2 of them at near-ties (margin within 2.50e-06 of the largest logit)".
std::string sentence_of(const TextDifference& difference, double bound);

}  // namespace grace::app
