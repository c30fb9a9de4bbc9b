// The published method (GRACE-MoE, arXiv 2509.25041) and the variants it is measured against. Defaults: two
// levels, r at the knee of the whole model's curve unless it is given, dynamic replication, TAR.
#include <fmt/format.h>

#include "grace/planner/strategy.h"
#include "grace/replication/replication.h"

namespace grace {
namespace {

enum class Sizes { kUniform, kControlled, kFree };  // of the devices' groups; uniform nodes are equal too
enum class Copying { kNone, kFixed, kDynamic };

struct Variant {
  Sizes sizes = Sizes::kControlled;
  Copying copying = Copying::kDynamic;
  std::string_view routing = "tar";
};

// r as the variant has it; the knee's is chosen from a curve that goes into the output.
double size_bound(const StrategyInput& input, Sizes sizes, std::span<const TwoLevels> levels,
                  StrategyOutput& output) {
  if (sizes == Sizes::kUniform) {
    output.provenance["sizes"] = "uniform";
    return 0;
  }
  if (sizes == Sizes::kFree) {
    output.provenance["sizes"] = "free";
    return kNoSizeBound;
  }
  double r = input.options.r;
  if (r < 0) {
    output.knee = knee_curve(input.stats, levels, input.cluster, input.pool);
    r = output.knee[knee_of(output.knee)].r;
  }
  output.provenance["sizes"] = "controlled";
  output.provenance["r"] = fmt::format("{}", r);
  output.provenance["r_from"] = input.options.r < 0 ? "knee" : "option";
  return r;
}

void copy_by(Copying copying, const LayerStats& stats, const Cluster& cluster, LayerPlan& layer) {
  switch (copying) {
    case Copying::kNone:
      return replicate_nothing(stats, layer);
    case Copying::kFixed:
      return replicate_heaviest_group(stats, cluster, {.num_hosts = 1}, layer);
    case Copying::kDynamic:
      return replicate_dynamic(stats, cluster, layer);
  }
}

std::string_view name_of(Copying copying) {
  return copying == Copying::kNone ? "none" : copying == Copying::kFixed ? "fixed" : "dynamic";
}

StrategyOutput grace_by(const StrategyInput& input, const Variant& variant) {
  StrategyOutput output;
  output.routing = variant.routing;
  output.provenance["replication"] = name_of(variant.copying);
  const std::size_t num_layers = input.stats.size();
  const NodeSizes nodes = variant.sizes == Sizes::kUniform ? NodeSizes::kEqual : NodeSizes::kFree;
  // 1. Group without size bounds: the same for every r.
  std::vector<TwoLevels> levels(num_layers);
  input.pool.for_each(
      num_layers, [&](std::size_t m, int) { levels[m] = two_levels(input.stats[m], input.cluster, nodes); });
  // 2. Choose r.
  const double r = size_bound(input, variant.sizes, levels, output);
  // 3. Hold sizes by r, 4. copy what is hot.
  output.layers.resize(num_layers);
  input.pool.for_each(num_layers, [&](std::size_t m, int) {
    LayerPlan& layer = output.layers[m];
    layer.primaries_of_device = device_groups(input.stats[m], input.cluster, levels[m], r);
    copy_by(variant.copying, input.stats[m], input.cluster, layer);
  });
  return output;
}

}  // namespace

StrategyOutput grace_layers(const StrategyInput& input) { return grace_by(input, {}); }

StrategyOutput grace_uniform_layers(const StrategyInput& input) {
  return grace_by(input, {.sizes = Sizes::kUniform, .copying = Copying::kNone});
}

StrategyOutput grace_hg_layers(const StrategyInput& input) {
  return grace_by(input, {.copying = Copying::kNone});
}

StrategyOutput grace_free_layers(const StrategyInput& input) {
  return grace_by(input, {.sizes = Sizes::kFree});
}

StrategyOutput grace_hg_fr_wrr_layers(const StrategyInput& input) {
  return grace_by(input, {.copying = Copying::kFixed, .routing = "wrr"});
}

StrategyOutput grace_hg_dr_wrr_layers(const StrategyInput& input) {
  return grace_by(input, {.routing = "wrr"});
}

}  // namespace grace
