#include "grace/planner/joint/search.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "grace/cost/evaluate.h"
#include "grace/planner/joint/anneal.h"
#include "grace/planner/joint/descent.h"
#include "grace/planner/joint/starts.h"
#include "grace/replication/eplb.h"
#include "grace/routing/routing.h"

namespace grace::joint {
namespace {

// Steps of the prices towards balance: few while placements still change, more for what is kept.
constexpr int kRoughSteps = 6;
constexpr int kFineSteps = 24;
// Experts times devices up to which neighbours are tried one by one, a millisecond or two each.
constexpr std::size_t kFewPlaces = 32;
constexpr double kTries = 300;
constexpr std::size_t kDescentTokens = 1024;
constexpr std::size_t kMostTokens = 32768;

SearchTokens sampled(const LayerProblem& problem, std::size_t most) {
  return sample_tokens(problem.plan, problem.layer, problem.cluster.num_devices(), most, problem.rng.fork(1));
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

// Judges plans on the choose tokens as they would be served: sequences start on devices, and not evenly.
class Chooser {
 public:
  Chooser(const LayerProblem& problem, SearchTokens tokens)
      : problem_(problem),
        tokens_(std::move(tokens)),
        counter_(problem.cluster, tokens_.num_experts, Dispatch::kTwoStage) {
    // A batch holds as many sequences as there are to learn from: the choose tokens stand for more than their
    // own.
    const int sequences = std::max(1, problem.plan.num_sequences() + problem.choose.num_sequences());
    const auto devices = static_cast<std::size_t>(problem.cluster.num_devices());
    Rng rng = problem.rng.fork(5);
    for (int deal = 0; deal < kDeals; ++deal) {
      std::vector<std::uint16_t>& source = source_of_deal_.emplace_back();
      for (std::size_t t = 0; t < tokens_.size(); ++t)
        source.push_back(
            static_cast<std::uint16_t>(rng.below(static_cast<std::uint64_t>(sequences)) % devices));
    }
  }

  // The aim's value: the evaluator's, over batches and deals.
  double value(const LayerPlan& plan, std::string_view policy) {
    FigureSum sum;
    for (const std::vector<std::uint16_t>& source : source_of_deal_) {
      std::vector<std::unique_ptr<Router>> routers;
      for (int d = 0; d < problem_.cluster.num_devices(); ++d)
        routers.push_back(
            make_router(policy, plan, tokens_.num_experts, problem_.cluster, DeviceId(d)).value());
      for (std::size_t t = 0; t < tokens_.size(); ++t) {
        add(*routers[source[t]], DeviceId(source[t]), tokens_.of(t));
        const bool full = static_cast<std::int64_t>(t + 1) % problem_.objective.batch == 0;
        if (!full && t + 1 < tokens_.size()) continue;
        sum.add(counter_.counts(), problem_.cluster, problem_.objective.sizes);
        counter_.clear();
      }
    }
    return value_of(sum.mean(), problem_.objective.aim);
  }

 private:
  static constexpr int kDeals = 3;

  void add(Router& router, DeviceId source, std::span<const std::uint16_t> experts) {
    const auto count = static_cast<int>(experts.size());
    devices_.resize(experts.size());
    router.route(experts, count, devices_);
    counter_.add(source, experts, devices_, count);
  }

  const LayerProblem& problem_;
  SearchTokens tokens_;
  BatchCounter counter_;
  std::vector<std::vector<std::uint16_t>> source_of_deal_;  // [kDeals][T]
  std::vector<std::int32_t> devices_;
};

// The search of one layer: the state that is searched on, the one who chooses, and what has been found.
class Search {
 public:
  explicit Search(const LayerProblem& problem)
      : problem_(problem),
        size_(search_size(problem.effort, problem.slots)),
        tokens_(sampled(problem, size_.tokens)),
        weights_(weights_of(problem.objective, problem.cluster, tokens_)),
        chooser_(problem, sample_tokens(problem.choose, problem.layer, problem.cluster.num_devices(),
                                        size_.tokens, problem.rng.fork(2))),
        start_{problem.cluster,        problem.stats,      tokens_, weights_, problem.slots,
               size_.bitset_proposals, problem.rng.fork(3)},
        single_(single_copies(start_)),
        state_(problem.cluster, tokens_, weights_, single_),
        even_prices_(state_.prices().begin(), state_.prices().end()) {}

  std::vector<LayerSolution> run() {
    state_.fit_prices(kFineSteps);
    keep("single");
    const int room = std::accumulate(problem_.slots.begin(), problem_.slots.end(), 0);
    if (room > tokens_.num_experts && problem_.cluster.num_devices() > 1) {
      anneal_from("greedy", single_);
      if (problem_.cluster.num_nodes() > 1) anneal_from("mirror", mirrored(start_));
      const EplbLayer eplb =
          eplb_layer(problem_.stats.load, problem_.cluster, problem_.slots, EplbLevels::kFlat);
      const Hosts packed = hosts_of(eplb.layer, tokens_.num_experts);
      state_.set_hosts(packed, even_prices_);
      state_.fit_prices(kFineSteps);
      keep("packed");
      anneal_from("balanced", packed);
      polish();
    }
    if (problem_.slots.size() * static_cast<std::size_t>(tokens_.num_experts) <= kFewPlaces)
      descend_from_best();
    return std::move(solutions_);
  }

 private:
  // A third of the effort for each start.
  void anneal_from(std::string_view start, const Hosts& hosts) {
    state_.set_hosts(hosts, even_prices_);
    state_.fit_prices(kRoughSteps);
    add_copies(state_, problem_.slots);
    anneal(state_, problem_.slots, size_.proposals / 3, 1, problem_.rng.fork(10 + solutions_.size()));
    state_.fit_prices(kFineSteps);
    keep(start);
  }

  // The best of the sample once more, from a lower temperature, with two thirds of the effort.
  void polish() {
    state_.set_hosts(best_hosts_, best_prices_);
    anneal(state_, problem_.slots, size_.proposals * 2 / 3, 0.3, problem_.rng.fork(9));
    state_.fit_prices(kFineSteps);
    keep("polished");
  }

  void descend_from_best() {
    const SearchTokens few = sampled(problem_, std::min(size_.tokens, kDescentTokens));
    const Weights weights = weights_of(problem_.objective, problem_.cluster, few);
    RoutedState state(problem_.cluster, few, weights, best_hosts_);
    state.set_prices(best_prices_);
    descend(state, problem_.slots, even_prices_, static_cast<std::size_t>(kTries * problem_.effort),
            problem_.rng.fork(8));
    state_.set_hosts(state.hosts(), even_prices_);
    state_.fit_prices(kFineSteps);
    keep("descended");
  }

  // [D] the load of all tokens to learn from, each expert's shared evenly by its copies.
  std::vector<double> even_loads() const {
    std::vector<double> loads(problem_.slots.size(), 0);
    for (std::size_t e = 0; e < problem_.stats.load.size(); ++e)
      for (std::size_t d = 0; d < loads.size(); ++d)
        if (state_.is_host(e, d))
          loads[d] += static_cast<double>(problem_.stats.load[e]) / state_.copies_of(e);
    return loads;
  }

  void keep(std::string_view start) {
    LayerSolution solution{start, plan_of(state_, weights_), even_loads(), state_.objective(), {}};
    LayerPlan in_turns = solution.plan;
    in_turns.predicted_load = solution.even_load;
    for (std::size_t p = 0; p < kPolicies.size(); ++p)
      solution.chosen[p] = chooser_.value(p == 0 ? solution.plan : in_turns, kPolicies[p]);
    if (solutions_.empty() || state_.value() < best_value_) {
      best_value_ = state_.value();
      best_hosts_ = state_.hosts();
      best_prices_.assign(state_.prices().begin(), state_.prices().end());
    }
    solutions_.push_back(std::move(solution));
  }

  const LayerProblem& problem_;
  SearchSize size_;
  SearchTokens tokens_;
  Weights weights_;
  Chooser chooser_;
  StartInput start_;
  Hosts single_;
  RoutedState state_;
  std::vector<double> even_prices_;
  std::vector<LayerSolution> solutions_;
  double best_value_ = 0;
  Hosts best_hosts_;
  std::vector<double> best_prices_;
};

}  // namespace

SearchSize search_size(double effort, std::span<const int> slots) {
  constexpr double kProposalsPerSlot = 12;
  constexpr double kMostProposals = 2'000;  // each costs more where there are more devices
  const auto total = static_cast<double>(std::accumulate(slots.begin(), slots.end(), 0));
  SearchSize size;
  size.tokens = static_cast<std::size_t>(
      std::clamp(4096 * std::sqrt(effort), 2048.0, static_cast<double>(kMostTokens)));
  size.bitset_proposals = static_cast<std::size_t>(20'000 * effort);
  size.proposals = static_cast<std::size_t>(std::min(kProposalsPerSlot * total, kMostProposals) * effort);
  return size;
}

SearchTokens searched_tokens(const LayerProblem& problem) {
  return sampled(problem, search_size(problem.effort, problem.slots).tokens);
}

std::vector<LayerSolution> search_layer(const LayerProblem& problem) { return Search(problem).run(); }

LayerPlan price_hosts(const LayerProblem& problem, const LayerPlan& copies) {
  const SearchTokens tokens = sample_tokens(problem.plan, problem.layer, problem.cluster.num_devices(),
                                            kMostTokens, problem.rng.fork(1));
  const Weights weights = weights_of(problem.objective, problem.cluster, tokens);
  RoutedState state(problem.cluster, tokens, weights, hosts_of(copies, tokens.num_experts));
  state.fit_prices(kFineSteps);
  return plan_of(state, weights);
}

}  // namespace grace::joint
