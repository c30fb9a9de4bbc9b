#include "grace/kernels/gate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

namespace grace::kernels::reference {
namespace {

using Values = std::vector<double>;

Values scores_of(std::span<const float> logits, Scores scores) {
  Values values;
  double total = 0;
  for (const float logit : logits) total += std::exp(double{logit});
  for (const float logit : logits)
    values.push_back(scores == Scores::kSoftmax ? std::exp(double{logit}) / total
                                                : 1 / (1 + std::exp(-double{logit})));
  return values;
}

// Indices by descending value, equals in their order.
std::vector<std::size_t> order_of(const Values& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
  return order;
}

Values group_values_of(const Values& values, const GateRule& rule) {
  const std::ptrdiff_t size = rule.experts / rule.groups;
  Values groups;
  for (auto group = values.begin(); group != values.end(); group += size) {
    Values sorted(group, group + size);
    std::ranges::sort(sorted, std::greater<>());
    groups.push_back(std::accumulate(sorted.begin(),
                                     sorted.begin() + std::min<std::ptrdiff_t>(size, rule.group_best), 0.0));
  }
  return groups;
}

}  // namespace

void gate(std::span<const float> logits, const GateRule& rule, std::span<const float> bias,
          std::span<std::uint16_t> ids, std::span<float> weights) {
  const auto experts = static_cast<std::size_t>(rule.experts), top = static_cast<std::size_t>(rule.top);
  for (std::size_t t = 0; t < logits.size() / experts; ++t) {
    const Values scores = scores_of(logits.subspan(t * experts, experts), rule.scores);
    Values values = scores;
    for (std::size_t e = 0; e < bias.size(); ++e) values[e] += double{bias[e]};
    const std::vector<std::size_t> groups = order_of(group_values_of(values, rule));
    const std::size_t size = experts / groups.size();
    for (std::size_t g = static_cast<std::size_t>(rule.groups_kept); g < groups.size(); ++g)
      std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(groups[g] * size), size, -1e300);
    const std::vector<std::size_t> order = order_of(values);
    double sum = 0;
    for (std::size_t k = 0; k < top; ++k) sum += scores[order[k]];
    for (std::size_t k = 0; k < top; ++k) {
      ids[t * top + k] = static_cast<std::uint16_t>(order[k]);
      weights[t * top + k] =
          static_cast<float>(scores[order[k]] / (rule.normalise ? sum : 1) * double{rule.scale});
    }
  }
}

}  // namespace grace::kernels::reference
