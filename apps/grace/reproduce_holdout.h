// What the sweeps of the published method share: a half of the sequences to learn from, plans made by hand
// from its parts, and the judge on the other half.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "grace/affinity/affinity.h"
#include "grace/cost/evaluate.h"
#include "grace/grouping/grouping.h"
#include "grace/plan/plan.h"
#include "grace/planner/judge.h"
#include "reproduce_tables.h"

namespace grace::app {

// Split `s` of compare() under the same seed.
struct Holdout {
  Trace learn;
  std::vector<int> judged_sequences;
  JudgeTokens judged;
  std::vector<LayerStats> stats;         // [M] of what is learnt from
  std::vector<LayerStats> judged_stats;  // [M]
  std::uint64_t seed;
};
Holdout holdout_of(const Subject& subject, const Measure& measure, int split);

// Calls the body once a split, with a bar of that name.
using OnSplit = std::function<Status(const Holdout&)>;
Status for_each_split(const char* name, const Subject& subject, const Measure& measure, const OnSplit& body);

std::vector<TwoLevels> levels_of(const Holdout& holdout, const Measure& measure, NodeSizes sizes);
// [M] Groups whose sizes are held by r, without copies.
std::vector<LayerPlan> grouped(const Holdout& holdout, const Measure& measure,
                               std::span<const TwoLevels> levels, double r);
Plan plan_of(const Subject& subject, const Measure& measure, std::vector<LayerPlan> layers,
             const char* routing);

// Two-stage dispatch; the mean over layers. Errors: those of judge().
Result<Figures> judged_at(const Plan& plan, const Subject& subject, const Holdout& holdout,
                          const Measure& measure, std::int64_t batch);

using Groups = std::vector<std::vector<ExpertId>>;  // [D][...]
// Shares of a layer's assignments by device, descending; even where there are none.
std::vector<double> shares_of(const LayerStats& stats, const Groups& groups);

// Mean over layers of a figure of a layer's plan on the judged tokens.
template <typename Figure>
double mean_over_layers(std::span<const LayerPlan> layers, const Figure& figure) {
  double sum = 0;
  for (std::size_t m = 0; m < layers.size(); ++m) sum += figure(m, layers[m]);
  return layers.empty() ? 0 : sum / static_cast<double>(layers.size());
}

}  // namespace grace::app
