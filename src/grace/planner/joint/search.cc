#include "grace/planner/joint/search.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "grace/planner/joint/anneal.h"
#include "grace/planner/joint/starts.h"
#include "grace/replication/eplb.h"

namespace grace::joint {
namespace {

// Steps of the prices towards balance: few while placements still change, more for what is kept.
constexpr int kRoughSteps = 6;
constexpr int kFineSteps = 24;

struct Candidate {
  std::string_view start;
  Hosts hosts;
  std::vector<double> prices;
  double searched = 0;
  double chosen = 0;
};

Hosts hosts_of(const LayerPlan& layer, int num_experts) {
  const std::size_t devices = layer.primaries_of_device.size();
  Hosts hosts(static_cast<std::size_t>(num_experts) * devices, 0);
  for (std::size_t d = 0; d < devices; ++d)
    for (const auto* list : {&layer.primaries_of_device[d], &layer.replicas_of_device[d]})
      for (const ExpertId e : *list) hosts[e.idx() * devices + d] = 1;
  return hosts;
}

// The copy that serves most is the primary; ties to the lower device.
LayerPlan plan_of(const RoutedState& state, const Weights& weights) {
  const std::size_t devices = state.num_devices();
  LayerPlan layer;
  layer.primaries_of_device.resize(devices);
  layer.replicas_of_device.resize(devices);
  for (std::size_t e = 0; e < state.hosts().size() / devices; ++e) {
    std::size_t primary = devices;
    for (std::size_t d = 0; d < devices; ++d)
      if (state.is_host(e, d) && (primary == devices || state.copy_load(e, d) > state.copy_load(e, primary)))
        primary = d;
    for (std::size_t d = 0; d < devices; ++d)
      if (state.is_host(e, d))
        (d == primary ? layer.primaries_of_device : layer.replicas_of_device)[d].push_back(
            ExpertId(static_cast<int>(e)));
  }
  layer.predicted_load = state.loads();
  layer.cover = {weights.node, weights.device, {state.prices().begin(), state.prices().end()}};
  return layer;
}

// The search of one layer: the state that is searched on, the one that chooses, and what has been found.
class Search {
 public:
  explicit Search(const LayerProblem& problem)
      : problem_(problem),
        size_(search_size(problem.effort, problem.slots)),
        tokens_(sample_tokens(problem.plan, problem.layer, problem.cluster.num_devices(), size_.tokens,
                              problem.rng.fork(1))),
        choose_tokens_(sample_tokens(problem.choose, problem.layer, problem.cluster.num_devices(),
                                     size_.tokens, problem.rng.fork(2))),
        weights_(weights_of(problem.objective, problem.cluster, tokens_)),
        choose_weights_(weights_of(problem.objective, problem.cluster, choose_tokens_)),
        start_{problem.cluster,        problem.stats,      tokens_, weights_, problem.slots,
               size_.bitset_proposals, problem.rng.fork(3)},
        single_(single_copies(start_)),
        state_(problem.cluster, tokens_, weights_, single_),
        chooser_(problem.cluster, choose_tokens_, choose_weights_, single_),
        even_prices_(state_.prices().begin(), state_.prices().end()) {}

  LayerSolution run() {
    keep("single", single_, false, kFineSteps);
    const int room = std::accumulate(problem_.slots.begin(), problem_.slots.end(), 0);
    if (room > tokens_.num_experts && problem_.cluster.num_devices() > 1) {
      anneal_from("greedy", single_, size_.proposals / 3);
      if (problem_.cluster.num_nodes() > 1) anneal_from("mirror", mirrored(start_), size_.proposals / 3);
      const EplbLayer eplb =
          eplb_layer(problem_.stats.load, problem_.cluster, problem_.slots, EplbLevels::kFlat);
      anneal_from("balanced", hosts_of(eplb.layer, tokens_.num_experts), size_.proposals / 3);
      polish();
    }
    const Candidate& best = candidates_[best_index()];
    state_.set_hosts(best.hosts, best.prices);
    return {plan_of(state_, weights_), best.start, best.searched, best.chosen};
  }

  LayerPlan priced(const Hosts& hosts) {
    state_.set_hosts(hosts, even_prices_);
    state_.fit_prices(kFineSteps);
    return plan_of(state_, weights_);
  }

 private:
  void anneal_from(std::string_view start, const Hosts& hosts, std::size_t proposals) {
    state_.set_hosts(hosts, even_prices_);
    state_.fit_prices(kRoughSteps);
    add_copies(state_, problem_.slots);
    anneal(state_, problem_.slots, proposals, 1, problem_.rng.fork(10 + candidates_.size()));
    const Hosts found = state_.hosts();
    keep(start, found, true, kFineSteps);
  }

  // The best so far once more, from a lower temperature, with what is left of the effort.
  void polish() {
    const Candidate from = candidates_[best_index()];
    state_.set_hosts(from.hosts, from.prices);
    anneal(state_, problem_.slots, size_.proposals * 2 / 3, 0.3, problem_.rng.fork(9));
    const Hosts found = state_.hosts();
    keep(from.start, found, true, kFineSteps);
  }

  // Fits prices from where they are, or from even ones, and judges on the choose tokens.
  void keep(std::string_view start, const Hosts& hosts, bool from_here, int steps) {
    if (!from_here) state_.set_hosts(hosts, even_prices_);
    state_.fit_prices(steps);
    Candidate candidate{
        start, hosts, {state_.prices().begin(), state_.prices().end()}, state_.objective(), 0};
    chooser_.set_hosts(candidate.hosts, candidate.prices);
    candidate.chosen = chooser_.objective();
    candidates_.push_back(std::move(candidate));
  }

  std::size_t best_index() const {
    std::size_t best = 0;
    for (std::size_t c = 1; c < candidates_.size(); ++c)
      if (candidates_[c].chosen < candidates_[best].chosen) best = c;
    return best;
  }

  const LayerProblem& problem_;
  SearchSize size_;
  SearchTokens tokens_, choose_tokens_;
  Weights weights_, choose_weights_;
  StartInput start_;
  Hosts single_;
  RoutedState state_, chooser_;
  std::vector<double> even_prices_;
  std::vector<Candidate> candidates_;
};

}  // namespace

SearchSize search_size(double effort, std::span<const int> slots) {
  constexpr double kProposalsPerSlot = 30;
  const auto total = static_cast<double>(std::accumulate(slots.begin(), slots.end(), 0));
  SearchSize size;
  size.tokens = static_cast<std::size_t>(std::clamp(4096 * std::sqrt(effort), 2048.0, 32768.0));
  size.bitset_proposals = static_cast<std::size_t>(30'000 * effort);
  size.proposals = static_cast<std::size_t>(kProposalsPerSlot * total * effort);
  return size;
}

LayerSolution search_layer(const LayerProblem& problem) { return Search(problem).run(); }

LayerPlan price_hosts(const LayerProblem& problem, const LayerPlan& copies) {
  const SearchSize size = search_size(problem.effort, problem.slots);
  const SearchTokens tokens = sample_tokens(problem.plan, problem.layer, problem.cluster.num_devices(),
                                            size.tokens, problem.rng.fork(1));
  const Weights weights = weights_of(problem.objective, problem.cluster, tokens);
  RoutedState state(problem.cluster, tokens, weights, hosts_of(copies, tokens.num_experts));
  state.fit_prices(kFineSteps);
  return plan_of(state, weights);
}

}  // namespace grace::joint
