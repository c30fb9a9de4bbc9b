#include "grace/runtime/near_ties.h"

#include <algorithm>

#include "grace/base/check.h"

namespace grace {

double near_tie_bound(const ModelConfig& config, Combine combine, Wire wire) {
  constexpr double kUnitF32 = 0x1p-24, kUnitBf16 = 0x1p-8;
  if (combine == Combine::kExact) return 0;
  double eps = 2 * (config.experts_per_token - 1) * kUnitF32;
  if (wire == Wire::kBf16) eps += 2 * kUnitBf16;
  return 2 * static_cast<double>(config.moe_layers.size()) * eps;
}

TextDifference difference_of(const std::vector<std::vector<std::int32_t>>& reference,
                             const std::vector<std::vector<TokenMargin>>& margins,
                             const std::vector<std::vector<std::int32_t>>& outputs, double bound) {
  GRACE_CHECK(margins.size() == reference.size() && outputs.size() == reference.size(),
              "texts of other prompts are compared");
  TextDifference found;
  for (std::size_t p = 0; p < reference.size(); ++p) {
    if (reference[p] == outputs[p]) continue;
    ++found.prompts;
    const auto first =
        static_cast<std::size_t>(std::ranges::mismatch(reference[p], outputs[p]).in1 - reference[p].begin());
    if (bound <= 0 || first >= margins[p].size()) continue;
    const TokenMargin& there = margins[p][first];
    if (static_cast<double>(there.margin) <= bound * static_cast<double>(there.largest)) ++found.near_ties;
  }
  return found;
}

}  // namespace grace
