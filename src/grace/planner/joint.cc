// `joint`: placement, copies and routing by one objective (docs/joint.md). `eplb-cover`: the same routing
// over EPLB's copies, to tell what the routing alone is worth.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "grace/planner/joint/search.h"
#include "grace/planner/strategy.h"

namespace grace {
namespace {

joint::LayerProblem problem_of(const StrategyInput& input, std::size_t m, const Objective& objective) {
  return {input.cluster,
          input.stats[m],
          input.plan,
          input.choose,
          MoeOrdinal(static_cast<std::int32_t>(m)),
          input.slots[m],
          objective,
          input.options.effort,
          Rng(input.options.seed).fork(m)};
}

struct Choice {
  std::size_t start = 0;
  std::size_t policy = 0;
  double value = 0;
};

// A layer whose slots hold every expert just once has but one solution, which stands for all starts.
const joint::LayerSolution& solution_of(const std::vector<joint::LayerSolution>& layer, std::size_t start) {
  return layer[std::min(start, layer.size() - 1)];
}

// The start and the policy that do best on the choose tokens of all layers together.
Choice choose(const std::vector<std::vector<joint::LayerSolution>>& solutions) {
  std::size_t starts = 0;
  for (const auto& layer : solutions) starts = std::max(starts, layer.size());
  Choice best;
  for (std::size_t s = 0; s < starts; ++s)
    for (std::size_t p = 0; p < joint::kPolicies.size(); ++p) {
      double value = 0;
      for (const auto& layer : solutions)
        value += solution_of(layer, s).chosen[p] / static_cast<double>(solutions.size());
      if ((s > 0 || p > 0) && value >= best.value) continue;
      best = {s, p, value};
    }
  return best;
}

StrategyOutput joint_for(const StrategyInput& input, Aim aim) {
  Objective objective = input.options.objective;
  objective.aim = aim;
  const std::size_t num_layers = input.stats.size();
  std::vector<std::vector<joint::LayerSolution>> solutions(num_layers);  // [M][starts]
  input.pool.for_each(num_layers, [&](std::size_t m, int) {
    solutions[m] = joint::search_layer(problem_of(input, m, objective));
  });
  const Choice choice = choose(solutions);
  StrategyOutput output;
  output.routing = joint::kPolicies[choice.policy];
  std::string_view start;
  for (const std::vector<joint::LayerSolution>& layer : solutions) {
    const joint::LayerSolution& chosen = solution_of(layer, choice.start);
    output.layers.push_back(chosen.plan);
    output.figures["objective_insample"] += chosen.searched / static_cast<double>(num_layers);
    if (layer.size() > 1 || start.empty()) start = chosen.start;
  }
  output.figures["objective_choose"] = choice.value;
  output.provenance = {{"aim", std::string(name_of(aim))},
                       {"effort", fmt::format("{}", input.options.effort)},
                       {"batch", fmt::format("{}", objective.batch)},
                       {"start", std::string(start)}};
  return output;
}

}  // namespace

StrategyOutput joint_layers(const StrategyInput& input) { return joint_for(input, Aim::kLayerTime); }
StrategyOutput joint_slow_layers(const StrategyInput& input) { return joint_for(input, Aim::kJudgeSlow); }
StrategyOutput joint_fast_layers(const StrategyInput& input) { return joint_for(input, Aim::kJudgeFast); }

StrategyOutput eplb_cover_layers(const StrategyInput& input) {
  StrategyOutput output = eplb_layers(input);
  Objective objective = input.options.objective;
  if (!objective.sizes.known()) objective.aim = Aim::kJudgeSlow;
  input.pool.for_each(output.layers.size(), [&](std::size_t m, int) {
    output.layers[m] = joint::price_hosts(problem_of(input, m, objective), output.layers[m]);
  });
  output.routing = "cover";
  return output;
}

}  // namespace grace
