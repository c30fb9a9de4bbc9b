#include "grace/planner/certify.h"

#include <algorithm>
#include <cmath>

#include "grace/base/check.h"
#include "grace/planner/joint/bounds.h"
#include "grace/planner/planner.h"
#include "grace/routing/partners.h"

namespace grace {
namespace {

// The batch as the bounds take it: the judge's tokens on the judge's sources.
joint::SearchTokens tokens_of(const Trace& trace, MoeOrdinal layer, const LayerPlan& plan,
                              const JudgeTokens& tokens, std::size_t count) {
  joint::SearchTokens out;
  out.num_experts = trace.num_experts;
  out.load.assign(static_cast<std::size_t>(trace.num_experts), 0);
  for (std::size_t i = 0; i < count; ++i) {
    const auto free = trace.choices(tokens.rows[i], layer);
    std::vector<std::uint16_t> choices(free.begin(), free.end());
    hold_to_partners(plan, choices, trace.weights(tokens.rows[i], layer));
    for (const std::uint16_t expert : choices) {
      if (expert == kNotRouted) continue;
      out.experts.push_back(expert);
      ++out.load[expert];
      ++out.assignments;
    }
    if (out.experts.size() == out.begin.back()) continue;
    out.begin.push_back(static_cast<std::uint32_t>(out.experts.size()));
    out.source.push_back(static_cast<std::uint16_t>(tokens.source[i].value));
    out.halves.push_back(0);
  }
  return out;
}

}  // namespace

std::vector<std::vector<int>> held_slots(const Plan& plan) {
  std::vector<std::vector<int>> slots;
  for (const LayerPlan& layer : plan.layers) {
    std::vector<int>& held = slots.emplace_back();
    for (std::size_t d = 0; d < layer.primaries_of_device.size(); ++d)
      held.push_back(
          static_cast<int>(layer.primaries_of_device[d].size() + layer.replicas_of_device[d].size()));
  }
  return slots;
}

Result<Certificate> certify(const Plan& plan, const Trace& trace, const JudgeTokens& tokens,
                            const Cluster& cluster, Aim aim, std::int64_t batch,
                            std::span<const std::vector<int>> slots, ThreadPool& pool) {
  GRACE_CHECK(aim != Aim::kLayerTime, "bounds are in a yardstick's unit");
  GRACE_CHECK(slots.size() == plan.layers.size(), "slots for each layer");
  const auto count = std::min(tokens.rows.size(), static_cast<std::size_t>(batch));
  JudgeTokens first{{tokens.rows.begin(), tokens.rows.begin() + static_cast<std::ptrdiff_t>(count)},
                    {tokens.source.begin(), tokens.source.begin() + static_cast<std::ptrdiff_t>(count)}};
  JudgeOptions options;
  options.batch = batch;
  const std::vector<Figures> figures = GRACE_TRY(judge(plan, trace, first, cluster, options, pool));
  const Objective objective{aim, {}, batch};
  std::vector<Certificate> of_layer(plan.layers.size());
  pool.for_each(of_layer.size(), [&](std::size_t m, int) {
    const joint::SearchTokens layer_tokens =
        tokens_of(trace, MoeOrdinal(static_cast<int>(m)), plan.layers[m], first, count);
    Certificate& certificate = of_layer[m];
    certificate.routed = value_of(figures[m], aim);
    certificate.max_over_mean = figures[m].load_max_over_mean;
    if (layer_tokens.size() == 0) return;
    const joint::Weights weights = joint::weights_of(objective, cluster, layer_tokens);
    const joint::Hosts hosts = joint::hosts_of(plan.layers[m], plan.num_experts);
    certificate.routing_bound =
        joint::routing_bound(cluster, layer_tokens, weights, hosts, plan.layers[m].cover.price).value;
    certificate.placement_bound = joint::placement_bound(cluster, layer_tokens, weights, slots[m]).value;
    const double mean = static_cast<double>(layer_tokens.assignments) / cluster.num_devices();
    certificate.least_max_over_mean =
        joint::exact_min_max_load(layer_tokens.load, hosts, static_cast<std::size_t>(cluster.num_devices())) /
        mean;
  });
  Certificate mean{0, 0, 0, 0, 0};
  const auto layers = static_cast<double>(std::max<std::size_t>(1, of_layer.size()));
  for (const Certificate& certificate : of_layer) {
    mean.routed += certificate.routed / layers;
    mean.routing_bound += certificate.routing_bound / layers;
    mean.placement_bound += certificate.placement_bound / layers;
    mean.max_over_mean += certificate.max_over_mean / layers;
    mean.least_max_over_mean += certificate.least_max_over_mean / layers;
  }
  return mean;
}

Result<PlanWorth> worth_of(const Plan& plan, const Trace& trace, const Cluster& cluster, Aim aim,
                           std::int64_t batch, std::uint64_t seed, ThreadPool& pool) {
  const JudgeTokens tokens = judge_tokens(trace, choose_sequences(trace, seed), cluster.num_devices(), seed);
  PlanWorth worth;
  worth.aim = aim;
  worth.bounds = GRACE_TRY(certify(plan, trace, tokens, cluster, aim, batch, held_slots(plan), pool));
  JudgeOptions options;
  options.batch = batch;
  const std::vector<Figures> figures = GRACE_TRY(judge(plan, trace, tokens, cluster, options, pool));
  const Plan contiguous =
      GRACE_TRY(make_plan(trace, cluster, {.strategy = "vanilla", .seed = seed}, pool)).plan;
  const std::vector<Figures> by_default = GRACE_TRY(judge(contiguous, trace, tokens, cluster, options, pool));
  worth.value = value_of(mean_of(figures), aim);
  worth.default_value = value_of(mean_of(by_default), aim);
  const auto layers = static_cast<double>(figures.size());
  double squares = 0;
  for (std::size_t m = 0; m < figures.size(); ++m) {
    const double less = value_of(by_default[m], aim) - value_of(figures[m], aim);
    squares += (less - (worth.default_value - worth.value)) * (less - (worth.default_value - worth.value));
  }
  if (figures.size() > 1) worth.noise = 2 * std::sqrt(squares / (layers - 1) / layers);
  return worth;
}

}  // namespace grace
