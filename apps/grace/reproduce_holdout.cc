#include "reproduce_holdout.h"

#include <algorithm>
#include <array>
#include <functional>

#include "grace/replication/replication.h"
#include "progress.h"

namespace grace::app {

Holdout holdout_of(const Subject& subject, const Measure& measure, int split) {
  constexpr std::array kHalves = {0.5, 0.5};
  const Trace& trace = subject.trace;
  const std::uint64_t seed = measure.seed + static_cast<std::uint64_t>(split);
  const auto parts = split_sequences(trace.num_sequences(), kHalves, seed);
  Holdout out{select_sequences(trace, parts[0]),
              parts[1],
              judge_tokens(trace, parts[1], measure.cluster.num_devices(), seed),
              {},
              count_layers(select_sequences(trace, parts[1]), measure.pool),
              seed};
  out.stats = count_layers(out.learn, measure.pool);
  return out;
}

Status for_each_split(const char* name, const Subject& subject, const Measure& measure, const OnSplit& body) {
  Progress progress(name);
  for (int s = 0; s < measure.splits; ++s) {
    progress(s, measure.splits);
    GRACE_TRY(body(holdout_of(subject, measure, s)));
  }
  return {};
}

std::vector<TwoLevels> levels_of(const Holdout& holdout, const Measure& measure, NodeSizes sizes) {
  std::vector<TwoLevels> levels(holdout.stats.size());
  measure.pool.for_each(levels.size(), [&](std::size_t m, int) {
    levels[m] = two_levels(holdout.stats[m], measure.cluster, sizes);
  });
  return levels;
}

std::vector<LayerPlan> grouped(const Holdout& holdout, const Measure& measure,
                               std::span<const TwoLevels> levels, double r) {
  std::vector<LayerPlan> layers(levels.size());
  measure.pool.for_each(levels.size(), [&](std::size_t m, int) {
    layers[m].primaries_of_device = device_groups(holdout.stats[m], measure.cluster, levels[m], r);
    replicate_nothing(holdout.stats[m], layers[m]);
  });
  return layers;
}

Plan plan_of(const Subject& subject, const Measure& measure, std::vector<LayerPlan> layers,
             const char* routing) {
  Plan plan;
  plan.model = subject.trace.model;
  plan.num_experts = subject.trace.num_experts;
  plan.decoder_layers = subject.trace.decoder_layers;
  for (const std::vector<Device>& devices : measure.cluster.devices_of_node)
    plan.devices_per_node.push_back(static_cast<int>(devices.size()));
  plan.strategy = "grace";
  plan.routing = routing;
  plan.layers = std::move(layers);
  return plan;
}

Result<Figures> judged_at(const Plan& plan, const Subject& subject, const Holdout& holdout,
                          const Measure& measure, std::int64_t batch) {
  JudgeOptions options;
  options.batch = batch;
  options.sizes = subject.sizes;
  return grace::mean_of(
      GRACE_TRY(judge(plan, subject.trace, holdout.judged, measure.cluster, options, measure.pool)));
}

std::vector<double> shares_of(const LayerStats& stats, const Groups& groups) {
  std::vector<double> shares;
  double total = 0;
  for (const std::vector<ExpertId>& group : groups) {
    std::int64_t load = 0;
    for (const ExpertId e : group) load += stats.load[e.idx()];
    total += static_cast<double>(load);
    shares.push_back(static_cast<double>(load));
  }
  for (double& share : shares) share = total > 0 ? share / total : 1 / static_cast<double>(shares.size());
  std::ranges::sort(shares, std::greater<>());
  return shares;
}

}  // namespace grace::app
