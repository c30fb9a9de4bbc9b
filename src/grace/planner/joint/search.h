// One layer's search: starts, copies, annealing; and what each result does on tokens the search did not see.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "grace/affinity/affinity.h"
#include "grace/base/rng.h"
#include "grace/plan/plan.h"
#include "grace/planner/joint/routed_state.h"

namespace grace::joint {

// How much is tried. The default effort plans 26 layers of 64 experts in a few seconds.
struct SearchSize {
  std::size_t tokens = 0;            // of the sample
  std::size_t bitset_proposals = 0;  // of each search without copies
  std::size_t proposals = 0;         // of each annealing with copies
};
SearchSize search_size(double effort, std::span<const int> slots);

struct LayerProblem {
  const Cluster& cluster;
  const LayerStats& stats;  // of all tokens to learn from
  const Trace& plan;        // searched on
  const Trace& choose;      // decides among results
  MoeOrdinal layer;
  std::span<const int> slots;  // [D]; their sum holds every expert once
  const Objective& objective;
  double effort = 1;
  Rng rng;
};

// The tokens that the search sees.
SearchTokens searched_tokens(const LayerProblem& problem);

// Policies a plan may be routed by; the search is made for the first, the others are kept for where they do
// better: turns when tokens start on few devices, primaries when reading an expert's weights on two devices
// costs more than the vectors that it saves.
inline constexpr std::array<std::string_view, 3> kPolicies = {"cover", "tar", "primary"};

struct LayerSolution {
  std::string_view
      start;       // where it came from: single, greedy, mirror, packed, balanced, polished, descended
  LayerPlan plan;  // predicted loads: as routed by cover
  std::vector<double> even_load;  // [D] predicted loads where an expert's copies take turns
  double searched = 0;  // the objective on the sample, routed by cover, in the objective's unit per token
  std::array<double, kPolicies.size()> chosen{};  // the aim's value on the choose tokens, by policy
};
// One solution from each start that the cluster and the slots have, always in the same order, so that a
// model's layers can be chosen from together: the choose tokens of one layer are too few to tell its
// solutions apart. REQUIRES: both traces have tokens.
std::vector<LayerSolution> search_layer(const LayerProblem& problem);

// Hosts given, prices fitted on the plan tokens: cover and price over somebody else's copies.
LayerPlan price_hosts(const LayerProblem& problem, const LayerPlan& copies);

}  // namespace grace::joint
