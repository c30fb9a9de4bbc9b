#include "grace/routing/partners.h"

#include <algorithm>

#include "grace/base/check.h"
#include "grace/routing/routing.h"

namespace grace {
namespace {

// The index of the token's best choice, or K where it has none.
std::size_t best_of(std::span<const std::uint16_t> choices, std::span<const float> weights) {
  std::size_t best = choices.size();
  for (std::size_t k = 0; k < choices.size(); ++k) {
    if (choices[k] == kNotChosen) continue;
    if (best == choices.size() || (!weights.empty() && weights[k] > weights[best])) best = k;
  }
  return best;
}

}  // namespace

void hold_to_partners(const LayerPlan& layer, std::span<std::uint16_t> choices,
                      std::span<const float> weights) {
  if (layer.partners_of_expert.empty()) return;
  const std::size_t best = best_of(choices, weights);
  if (best == choices.size()) return;
  GRACE_CHECK(choices[best] < layer.partners_of_expert.size(), "a choice is an expert of the layer");
  const std::vector<ExpertId>& partners = layer.partners_of_expert[choices[best]];
  const auto allowed = [&](std::uint16_t expert) {
    return std::ranges::find(partners, ExpertId(expert)) != partners.end();
  };
  std::size_t next = 0;
  for (std::size_t k = 0; k < choices.size(); ++k) {
    if (k == best || choices[k] == kNotChosen || allowed(choices[k])) continue;
    const auto chosen = [&](ExpertId partner) {
      return std::ranges::find(choices, static_cast<std::uint16_t>(partner.value)) != choices.end();
    };
    while (next < partners.size() && chosen(partners[next])) ++next;
    GRACE_CHECK(next < partners.size(), "an expert has as many partners as a token has other choices");
    choices[k] = static_cast<std::uint16_t>(partners[next].value);
  }
}

}  // namespace grace
