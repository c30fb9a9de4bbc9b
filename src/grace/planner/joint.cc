// `joint`: placement, copies and routing by one objective (docs/joint.md). `eplb-cover`: the same routing
// over EPLB's copies, to tell what the routing alone is worth.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
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

StrategyOutput joint_for(const StrategyInput& input, Aim aim) {
  Objective objective = input.options.objective;
  objective.aim = aim;
  const std::size_t num_layers = input.stats.size();
  std::vector<joint::LayerSolutions> solutions(num_layers);
  input.pool.for_each(num_layers, [&](std::size_t m, int) {
    solutions[m] = joint::search_layer(problem_of(input, m, objective));
  });
  // One policy for the whole model.
  std::array<double, joint::kPolicies.size()> chosen{};
  for (const joint::LayerSolutions& layer : solutions)
    for (std::size_t p = 0; p < chosen.size(); ++p)
      chosen[p] += layer[p].chosen / static_cast<double>(num_layers);
  const auto policy = static_cast<std::size_t>(std::ranges::min_element(chosen) - chosen.begin());
  StrategyOutput output;
  output.routing = joint::kPolicies[policy];
  std::map<std::string_view, int> starts;
  for (joint::LayerSolutions& layer : solutions) {
    output.layers.push_back(std::move(layer[policy].plan));
    ++starts[layer[policy].start];
    output.figures["objective_insample"] += layer[policy].searched / static_cast<double>(num_layers);
  }
  output.figures["objective_choose"] = chosen[policy];
  std::string won;
  for (const auto& [start, count] : starts)
    won += fmt::format("{}{} {}", won.empty() ? "" : ", ", start, count);
  output.provenance = {{"aim", std::string(name_of(aim))},
                       {"effort", fmt::format("{}", input.options.effort)},
                       {"batch", fmt::format("{}", objective.batch)},
                       {"starts", won}};
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
