#include "grace/planner/joint/spread.h"

#include <algorithm>

#include "grace/base/check.h"
#include "grace/planner/joint/starts.h"

namespace grace::joint {

std::vector<double> values_by_slots(const LayerProblem& problem, int least, int most) {
  constexpr std::size_t kTokens = 2048;
  constexpr std::size_t kProposals = 5000;
  constexpr int kSteps = 6;
  const SearchTokens tokens = sample_tokens(problem.plan, problem.layer, problem.cluster.num_devices(),
                                            kTokens, problem.rng.fork(21));
  const Weights weights = weights_of(problem.objective, problem.cluster, tokens);
  std::vector<double> values;
  for (int slots = least; slots <= most; ++slots) {
    const std::vector<int> of_device(static_cast<std::size_t>(problem.cluster.num_devices()), slots);
    const StartInput start{problem.cluster, problem.stats,       tokens, weights, of_device,
                           kProposals,      problem.rng.fork(22)};
    RoutedState state(problem.cluster, tokens, weights, mirrored(start));
    state.fit_prices(kSteps);
    values.push_back(values.empty() ? state.objective() : std::min(values.back(), state.objective()));
  }
  return values;
}

std::vector<int> spread_slots(std::span<const std::vector<double>> value, int least, int total) {
  std::vector<int> slots(value.size(), least);
  int left = total - least * static_cast<int>(value.size());
  GRACE_CHECK(left >= 0, "every layer has its least");
  while (left > 0) {
    std::size_t steepest = value.size();
    int step = 0;
    double slope = 0;
    for (std::size_t m = 0; m < value.size(); ++m) {
      const auto here = static_cast<std::size_t>(slots[m] - least);
      for (std::size_t to = here + 1; to < value[m].size() && to - here <= static_cast<std::size_t>(left);
           ++to) {
        const double fall = (value[m][here] - value[m][to]) / static_cast<double>(to - here);
        if (fall <= slope) continue;
        slope = fall;
        steepest = m;
        step = static_cast<int>(to - here);
      }
    }
    if (steepest == value.size()) break;  // nothing falls any more
    slots[steepest] += step;
    left -= step;
  }
  return slots;
}

}  // namespace grace::joint
