// `joint`: placement, copies and routing by one objective (docs/joint.md). `eplb-cover`: the same routing
// over EPLB's copies, to tell what the routing alone is worth.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "grace/planner/joint/search.h"
#include "grace/planner/joint/spread.h"
#include "grace/planner/strategy.h"

namespace grace {
namespace {

joint::LayerProblem problem_of(const StrategyInput& input, std::span<const std::vector<int>> slots,
                               std::size_t m, const Objective& objective) {
  return {input.cluster,
          input.stats[m],
          input.plan,
          input.choose,
          MoeOrdinal(static_cast<std::int32_t>(m)),
          slots[m],
          objective,
          input.options.effort,
          Rng(input.options.seed).fork(m)};
}

// The slots as they are given; or, where memory bounds all layers together, those that the layers make most
// of.
std::vector<std::vector<int>> spread_budget(const StrategyInput& input, const Objective& objective) {
  std::vector<std::vector<int>> slots(input.slots.begin(), input.slots.end());
  if (input.total_slots == 0) return slots;
  const int num_experts = input.stats.front().num_experts;
  const int devices = input.cluster.num_devices();
  const int least = (num_experts + devices - 1) / devices;
  // More than twice the even share in one layer would starve the others.
  const int even = input.total_slots / static_cast<int>(slots.size());
  const int most = std::min(num_experts, std::max(2 * even, least + 1));
  std::vector<std::vector<double>> values(slots.size());
  input.pool.for_each(values.size(), [&](std::size_t m, int) {
    values[m] = joint::values_by_slots(problem_of(input, slots, m, objective), least, most);
  });
  const std::vector<int> spread = joint::spread_slots(values, least, input.total_slots);
  for (std::size_t m = 0; m < slots.size(); ++m)
    for (std::size_t d = 0; d < slots[m].size(); ++d) {
      const int bound = input.cluster.device(DeviceId(static_cast<int>(d))).slots;
      slots[m][d] = bound > 0 ? std::min(bound, spread[m]) : spread[m];
    }
  return slots;
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
  const std::vector<std::vector<int>> slots = spread_budget(input, objective);
  std::vector<std::vector<joint::LayerSolution>> solutions(num_layers);  // [M][starts]
  input.pool.for_each(num_layers, [&](std::size_t m, int) {
    solutions[m] = joint::search_layer(problem_of(input, slots, m, objective));
  });
  const Choice choice = choose(solutions);
  StrategyOutput output;
  output.routing = joint::kPolicies[choice.policy];
  std::string_view start;
  for (const std::vector<joint::LayerSolution>& layer : solutions) {
    const joint::LayerSolution& chosen = solution_of(layer, choice.start);
    output.layers.push_back(chosen.plan);
    if (choice.policy > 0) output.layers.back().predicted_load = chosen.even_load;
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
    output.layers[m] = joint::price_hosts(problem_of(input, input.slots, m, objective), output.layers[m]);
  });
  output.routing = "cover";
  return output;
}

}  // namespace grace
