#include "near_ties.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace grace::app {
namespace {

bool is_near_tie(const RecordedRun& reference, const RecordedRun& run, std::size_t prompt, double bound) {
  const std::vector<std::int32_t>& expected = reference.outputs[prompt];
  const auto at =
      static_cast<std::size_t>(std::ranges::mismatch(expected, run.outputs[prompt]).in1 - expected.begin());
  if (bound <= 0 || at >= expected.size()) return false;
  const TokenMargin& margin = reference.margins[prompt][at];
  return static_cast<double>(margin.margin) <= bound * static_cast<double>(margin.largest);
}

}  // namespace

TextDifference difference(const RecordedRun& reference, const RecordedRun& run, double bound) {
  TextDifference found;
  for (std::size_t prompt = 0; prompt < reference.outputs.size(); ++prompt) {
    if (reference.outputs[prompt] == run.outputs[prompt]) continue;
    ++found.prompts;
    if (is_near_tie(reference, run, prompt, bound)) ++found.near_ties;
  }
  return found;
}

std::string sentence_of(const TextDifference& difference, double bound) {
  if (difference.prompts == 0) return "same text";
  return fmt::format("{} prompts differ, {} of them at near-ties (margin within {:.2e} of the largest logit)",
                     difference.prompts, difference.near_ties, bound);
}

}  // namespace grace::app
