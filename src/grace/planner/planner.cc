#include "grace/planner/planner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "grace/base/check.h"
#include "grace/planner/strategy.h"

namespace grace {
namespace {

constexpr std::array kStrategies = {
    Strategy{"vanilla", false, false, &vanilla_layers},
    Strategy{"grace", false, true, &grace_layers},
    Strategy{"grace-uniform", false, true, &grace_uniform_layers},
    Strategy{"grace-hg", false, true, &grace_hg_layers},
    Strategy{"grace-free", false, true, &grace_free_layers},
    Strategy{"grace-hg-fr-wrr", false, true, &grace_hg_fr_wrr_layers},
    Strategy{"grace-hg-dr-wrr", false, true, &grace_hg_dr_wrr_layers},
    Strategy{"occult", false, true, &occult_layers},
    Strategy{"c2r", false, true, &c2r_layers},
    Strategy{"eplb", false, false, &eplb_layers},
    Strategy{"eplb-flat", false, false, &eplb_flat_layers},
    Strategy{"eplb-cover", false, true, &eplb_cover_layers},
    Strategy{"joint", true, true, &joint_layers},
    Strategy{"joint-slow", false, true, &joint_slow_layers},
    Strategy{"joint-fast", false, true, &joint_fast_layers},
};

// What is planned, whether its tokens are known or only its loads.
struct Subject {
  std::string kind;  // "trace"
  const std::string& model;
  const std::string& source;
  int num_experts;
  const std::vector<int>& decoder_layers;

  int num_moe_layers() const { return static_cast<int>(decoder_layers.size()); }
  const std::string& name() const { return source.empty() ? model : source; }
};
Subject subject_of(const Trace& trace) {
  return {"trace", trace.model, trace.source, trace.num_experts, trace.decoder_layers};
}
Subject subject_of(const LoadProfile& loads) {
  return {"load profile", loads.model, loads.source, loads.num_experts, loads.decoder_layers};
}

const Strategy* find_strategy(std::string_view name) {
  const auto found = std::ranges::find(kStrategies, name, &Strategy::name);
  return found == kStrategies.end() ? nullptr : &*found;
}

Status check_slots(const Cluster& cluster, int num_experts) {
  const int num_devices = cluster.num_devices();
  std::int64_t slots = 0;
  for (int d = 0; d < num_devices; ++d) {
    const int here = cluster.device(DeviceId(d)).slots;
    if (here <= 0) return {};
    slots += here;
  }
  if (slots >= num_experts) return {};
  return invalid_input(fmt::format(
      "cluster {}: {} slots on {} devices cannot hold {} experts once; {} slots on every device would",
      cluster.name, slots, num_devices, num_experts, (num_experts + num_devices - 1) / num_devices));
}

// Copies a device may hold in a layer: the option's, within the cluster's.
int slots_on(const Device& device, int num_experts, int num_devices, int option) {
  const int default_slots = (num_experts + num_devices - 1) / num_devices + 1;
  const int wanted = option > 0 ? option : device.slots > 0 ? device.slots : default_slots;
  return std::min({wanted, device.slots > 0 ? device.slots : num_experts, num_experts});
}

// Experts of all layers that fit on the device with the least memory; 0 where memory does not bound the plan,
// or slots do.
int total_slots_of(const Cluster& cluster, const PlanOptions& options) {
  if (!options.slots.empty() || !options.objective.sizes.known()) return 0;
  double least = options.memory_bytes;
  for (int d = 0; d < cluster.num_devices() && options.memory_bytes == 0; ++d) {
    const double here = cluster.device(DeviceId(d)).memory_bytes;
    if (here > 0 && (least == 0 || here < least)) least = here;
  }
  const double experts = least / options.objective.sizes.expert_bytes();
  return static_cast<int>(std::min(experts, 1e9));
}

// [M][D]
std::vector<std::vector<int>> slots_of(const Subject& subject, const Cluster& cluster,
                                       const PlanOptions& options) {
  const int total = total_slots_of(cluster, options);
  std::vector<std::vector<int>> slots(static_cast<std::size_t>(subject.num_moe_layers()));
  for (std::size_t m = 0; m < slots.size(); ++m) {
    const int of_layer = options.slots.empty() ? 0 : options.slots[options.slots.size() == 1 ? 0 : m];
    const int option = total > 0 ? std::max(1, total / subject.num_moe_layers()) : of_layer;
    for (int d = 0; d < cluster.num_devices(); ++d)
      slots[m].push_back(
          slots_on(cluster.device(DeviceId(d)), subject.num_experts, cluster.num_devices(), option));
  }
  return slots;
}

Status check_budget(const Subject& subject, const Cluster& cluster, const PlanOptions& options) {
  const auto layers = static_cast<std::size_t>(subject.num_moe_layers());
  if (options.slots.size() > 1 && options.slots.size() != layers)
    return invalid_input(fmt::format("slots: {} numbers for {} MoE layers, must be one or one a layer",
                                     options.slots.size(), layers));
  for (const int slots : options.slots)
    if (slots < 1) return invalid_input(fmt::format("slots: {} is below 1", slots));
  if (!(options.memory_bytes >= 0) || !std::isfinite(options.memory_bytes))
    return invalid_input(fmt::format("memory: {} bytes is not a number of at least 0", options.memory_bytes));
  if (options.memory_bytes > 0 && !options.objective.sizes.known())
    return invalid_input("memory: a budget in bytes needs the model's sizes; name its shape");
  const int each = (subject.num_experts + cluster.num_devices() - 1) / cluster.num_devices();
  if (const int total = total_slots_of(cluster, options);
      (total > 0 || options.memory_bytes > 0) && total < each * subject.num_moe_layers())
    return invalid_input(fmt::format(
        "memory: room for {} experts a device, {} MoE layers of {} experts on {} devices need {} "
        "({:.4g} bytes)",
        total, layers, subject.num_experts, cluster.num_devices(), each * subject.num_moe_layers(),
        each * subject.num_moe_layers() * options.objective.sizes.expert_bytes()));
  const std::vector<std::vector<int>> slots = slots_of(subject, cluster, options);
  for (std::size_t m = 0; m < layers; ++m) {
    const int sum = std::accumulate(slots[m].begin(), slots[m].end(), 0);
    if (sum < subject.num_experts)
      return invalid_input(
          fmt::format("slots: {} on {} devices cannot hold {} experts once; {} on every device would", sum,
                      slots[m].size(), subject.num_experts,
                      (subject.num_experts + cluster.num_devices() - 1) / cluster.num_devices()));
  }
  return {};
}

Status check_options(const Subject& subject, const Cluster& cluster, const PlanOptions& options) {
  if (!(options.effort > 0) || options.effort > 1000)
    return invalid_input(fmt::format("effort: {} is outside (0, 1000]", options.effort));
  if (options.objective.batch < 1)
    return invalid_input(fmt::format("batch: {} tokens, must be at least 1", options.objective.batch));
  if (std::isnan(options.r) || options.r > 1)
    return invalid_input(fmt::format("r: {} is outside [0, 1] (negative: chosen by the knee)", options.r));
  if (cluster.num_devices() < 1)
    return invalid_input(fmt::format("cluster {}: has no device, needs at least 1", cluster.name));
  GRACE_TRY(check_slots(cluster, subject.num_experts));
  return check_budget(subject, cluster, options);
}

Status check_input(const Trace& trace, const Cluster& cluster, const PlanOptions& options) {
  if (trace.num_tokens() < 1 || trace.num_moe_layers() < 1 || trace.num_experts < 1 ||
      trace.experts_per_token < 1)
    return invalid_input(fmt::format(
        "trace {}: {} tokens, {} MoE layers, {} experts, {} experts per token; each must be at least 1",
        subject_of(trace).name(), trace.num_tokens(), trace.num_moe_layers(), trace.num_experts,
        trace.experts_per_token));
  if (const int least = std::max(1, trace.experts_per_token - 1);
      options.partners != 0 && (options.partners < least || options.partners >= trace.num_experts))
    return invalid_input(
        fmt::format("partners: {} is outside [{}, {}]", options.partners, least, trace.num_experts - 1));
  return check_options(subject_of(trace), cluster, options);
}

double predicted_max_over_mean(const LayerPlan& layer) {
  const std::vector<double>& load = layer.predicted_load;
  const double total = std::accumulate(load.begin(), load.end(), 0.0);
  return total > 0 ? *std::ranges::max_element(load) * static_cast<double>(load.size()) / total : 1;
}

double kept_by(const LayerStats& stats, const LayerPlan& layer) {
  std::vector<int> group_of_expert(static_cast<std::size_t>(stats.num_experts), 0);
  for (std::size_t d = 0; d < layer.primaries_of_device.size(); ++d)
    for (const ExpertId e : layer.primaries_of_device[d]) group_of_expert[e.idx()] = static_cast<int>(d);
  return affinity_kept(stats, group_of_expert);
}

// Figures on the tokens that made the plan, means over layers.
std::map<std::string, double> figures_of(std::span<const LayerStats> stats,
                                         const std::vector<LayerPlan>& layers) {
  double kept = 0;
  double peak = 0;
  bool affinity_known = true;  // one expert alone has no pair, and knows that
  for (std::size_t m = 0; m < layers.size(); ++m) {
    affinity_known = affinity_known && !stats[m].affinity.empty();
    if (affinity_known) kept += kept_by(stats[m], layers[m]);
    peak += predicted_max_over_mean(layers[m]);
  }
  const auto count = static_cast<double>(layers.size());
  std::map<std::string, double> figures = {{"load_max_over_mean_insample", peak / count}};
  if (affinity_known) figures["affinity_kept_insample"] = kept / count;
  return figures;
}

// Four fifths of the sequences are searched on, a fifth chooses among results; a single sequence does both.
struct PlanAndChoose {
  Trace plan;
  Trace choose;
};
std::vector<std::vector<int>> search_parts(const Trace& trace, std::uint64_t seed) {
  constexpr std::array kShares = {0.8, 0.2};
  return split_sequences(trace.num_sequences(), kShares, seed);
}
PlanAndChoose split_for_search(const Trace& trace, std::uint64_t seed) {
  const std::vector<std::vector<int>> parts = search_parts(trace, seed);
  PlanAndChoose out{select_sequences(trace, parts[0]), select_sequences(trace, parts[1])};
  if (out.plan.num_tokens() == 0 || out.choose.num_tokens() == 0) out = {trace, trace};
  return out;
}

// The moe ordinals in which no token was routed; their plan is the default order.
std::vector<std::size_t> layers_without_data(std::span<const LayerStats> stats) {
  std::vector<std::size_t> layers;
  for (std::size_t m = 0; m < stats.size(); ++m)
    if (std::ranges::all_of(stats[m].load, [](std::int64_t load) { return load == 0; })) layers.push_back(m);
  return layers;
}

}  // namespace

std::vector<int> choose_sequences(const Trace& trace, std::uint64_t seed) {
  const PlanAndChoose parts = split_for_search(trace, seed);
  std::vector<int> chosen = search_parts(trace, seed)[1];
  if (parts.choose.num_tokens() < trace.num_tokens()) return chosen;
  chosen.resize(static_cast<std::size_t>(trace.num_sequences()));
  std::iota(chosen.begin(), chosen.end(), 0);
  return chosen;
}

std::span<const Strategy> strategies() { return kStrategies; }

std::vector<std::string_view> strategy_names() {
  std::vector<std::string_view> names;
  for (const Strategy& strategy : kStrategies) names.push_back(strategy.name);
  return names;
}

int partners_for(int option, int num_experts, int experts_per_token) {
  return std::min(option > 0 ? option : 2 * experts_per_token, num_experts - 1);
}

bool needs_sizes(std::string_view strategy) {
  const Strategy* found = find_strategy(strategy);
  return found != nullptr && found->needs_sizes;
}

std::vector<std::string_view> load_strategy_names() {
  std::vector<std::string_view> names;
  for (const Strategy& strategy : kStrategies)
    if (!strategy.needs_coactivation) names.push_back(strategy.name);
  return names;
}

Status check_load_strategy(std::string_view strategy, std::string_view profile) {
  const Strategy* found = find_strategy(strategy);
  if (found == nullptr || !found->needs_coactivation) return {};
  return invalid_input(fmt::format(
      "strategy {}: goes by which experts a token chooses together, which a load profile ({}) does "
      "not say; from loads alone: {}",
      strategy, profile, fmt::join(load_strategy_names(), ", ")));
}

namespace {

Result<const Strategy*> strategy_for(const PlanOptions& options) {
  const Strategy* strategy = find_strategy(options.strategy);
  if (strategy != nullptr) return strategy;
  return invalid_input(
      fmt::format("strategy: '{}' is not one of {}", options.strategy, fmt::join(strategy_names(), ", ")));
}

PlanResult result_of(const Subject& subject, const std::string& hash, const Cluster& cluster,
                     const PlanOptions& options, std::span<const LayerStats> stats, StrategyOutput output) {
  PlanResult result;
  result.knee = std::move(output.knee);
  Plan& plan = result.plan;
  plan.model = subject.model;
  plan.num_experts = subject.num_experts;
  plan.decoder_layers = subject.decoder_layers;
  for (const std::vector<Device>& devices : cluster.devices_of_node)
    plan.devices_per_node.push_back(static_cast<int>(devices.size()));
  plan.strategy = options.strategy;
  plan.routing = output.routing;
  plan.layers = std::move(output.layers);
  plan.provenance = std::move(output.provenance);
  plan.provenance["strategy"] = options.strategy;
  plan.provenance["cluster"] = cluster.name;
  plan.provenance["seed"] = fmt::format("{}", options.seed);
  plan.provenance[subject.kind == "trace" ? "trace_hash" : "load_profile_hash"] = hash;
  plan.provenance["program_version"] = GRACE_VERSION;
  if (const std::vector<std::size_t> silent = layers_without_data(stats); !silent.empty())
    plan.provenance["moe_ordinals_without_data"] = fmt::format("{}", fmt::join(silent, ","));
  plan.figures = figures_of(stats, plan.layers);
  plan.figures.insert(output.figures.begin(), output.figures.end());

  const std::vector<std::string> faults = violations(plan, cluster);
  GRACE_CHECK(faults.empty(), faults.front());
  return result;
}

}  // namespace

Result<PlanResult> make_plan(const Trace& trace, const Cluster& cluster, const PlanOptions& options,
                             ThreadPool& pool) {
  const Strategy* strategy = GRACE_TRY(strategy_for(options));
  GRACE_TRY(check_input(trace, cluster, options));
  if (strategy->needs_sizes && !options.objective.sizes.known())
    return invalid_input(
        fmt::format("strategy {}: minimises seconds, which need the model's sizes; name its shape, or take "
                    "{}-slow or {}-fast",
                    options.strategy, options.strategy, options.strategy));

  const std::vector<LayerStats> stats = count_layers(trace, pool);
  const PlanAndChoose parts = split_for_search(trace, options.seed);
  const Subject subject = subject_of(trace);
  StrategyOutput output =
      strategy->make_layers({stats, parts.plan, parts.choose, cluster, slots_of(subject, cluster, options),
                             total_slots_of(cluster, options), options, pool});
  return result_of(subject, hash_of(trace), cluster, options, stats, std::move(output));
}

Result<PlanResult> make_plan(const LoadProfile& loads, const Cluster& cluster, const PlanOptions& options,
                             ThreadPool& pool) {
  const Strategy* strategy = GRACE_TRY(strategy_for(options));
  const Subject subject = subject_of(loads);
  if (const std::vector<std::string> found = violations(loads); !found.empty())
    return invalid_input(fmt::format("load profile {}: {}", subject.name(), found.front()));
  GRACE_TRY(check_load_strategy(options.strategy, subject.name()));
  GRACE_TRY(check_options(subject, cluster, options));
  const std::vector<LayerStats> stats = stats_of(loads);
  const Trace none;  // what goes by loads looks at no token
  StrategyOutput output =
      strategy->make_layers({stats, none, none, cluster, slots_of(subject, cluster, options),
                             total_slots_of(cluster, options), options, pool});
  return result_of(subject, hash_of(loads), cluster, options, stats, std::move(output));
}

}  // namespace grace
