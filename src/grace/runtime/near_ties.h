// Whether two runs say the same, and where they do not, whether rounding can have made the difference.
#pragma once

#include <cstdint>
#include <vector>

#include "grace/cost/cost.h"
#include "grace/model/model.h"
#include "grace/runtime/generate.h"

namespace grace {

// By what share of the largest |logit| rounding can move the margin of two logits, to first order: 2 L eps.
// eps is by what share of its terms' sizes a layer's sum over K experts can differ between two ways of adding
// it: 2 (K-1) u with reduced results, u = 2^-24; where those travel as bf16 2 * 2^-8 more, a half unit on
// each of two hops. Exact results are the same bits on either wire: none. L layers add their differences to
// the residual, whose size the bound takes for theirs, and both logits may move.
double near_tie_bound(const ModelConfig& config, Combine combine, Wire wire);

struct TextDifference {
  std::int64_t prompts = 0;    // whose texts differ
  std::int64_t near_ties = 0;  // of those, where rounding can have moved the first token that differs

  bool is_explained() const { return prompts == near_ties; }
};

// Up to the first token that differs two texts share everything, so only rounding can have moved it, if the
// reference's margin there is at most `bound` times its largest |logit|; a bound of 0 excuses nothing.
// REQUIRES: margins as reference; as many outputs; both ran the same prompts, greedily.
TextDifference difference_of(const std::vector<std::vector<std::int32_t>>& reference,
                             const std::vector<std::vector<TokenMargin>>& margins,
                             const std::vector<std::vector<std::int32_t>>& outputs, double bound);

}  // namespace grace
