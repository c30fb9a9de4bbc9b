#include "page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "grace/files/json_file.h"
#include "grace/report/text.h"

namespace grace::app {
namespace {

// Values of one kind of picture that a page may hold: the page stays within 5 MB.
constexpr std::int64_t kMostAffinities = 2'200'000, kMostVectors = 500'000, kMostHolders = 300'000;
// Devices that a traffic matrix tells apart; more stand together, neighbours with neighbours.
constexpr int kMostDevices = 128;

// Layers, evenly spread, of which `each` values apiece stay within `most`; at least one.
std::vector<std::size_t> layers_within(std::int64_t most, std::int64_t each, std::size_t layers) {
  const auto room =
      static_cast<std::size_t>(std::max<std::int64_t>(most / std::max<std::int64_t>(each, 1), 1));
  const std::size_t count = std::min(room, layers);
  std::vector<std::size_t> kept;
  for (std::size_t i = 0; i < count; ++i) kept.push_back(i * layers / count);
  return kept;
}

std::string said_of(const std::vector<std::size_t>& kept, std::size_t layers) {
  return kept.size() == layers ? ""
                               : fmt::format(
                                     " To keep the page small, {} of the {} layers are here; the slider "
                                     "shows the nearest.",
                                     kept.size(), layers);
}

std::vector<std::string> device_names(const Cluster& cluster) {
  std::vector<std::string> names;
  for (int d = 0; d < cluster.num_devices(); ++d)
    names.push_back(fmt::format("{} (node {})", d, cluster.node_of(DeviceId(d)).value));
  return names;
}

bool begins_node(const Cluster& cluster, int device) {
  return cluster.first_device_of(cluster.node_of(DeviceId(device))) == DeviceId(device);
}

// Before each device that begins a node; with `devices_too` a thin one before every other.
std::vector<report::Border> device_borders(const Cluster& cluster, bool devices_too) {
  std::vector<report::Border> borders;
  for (int d = 1; d < cluster.num_devices(); ++d)
    if (begins_node(cluster, d) || devices_too) borders.push_back({d, begins_node(cluster, d)});
  return borders;
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

// The experts of each device side by side.
report::HeatPanel grouped(const LayerPlan& layer, const Cluster& cluster) {
  report::HeatPanel panel;
  for (std::size_t d = 0; d < layer.primaries_of_device.size(); ++d) {
    const int device = static_cast<int>(d), before = static_cast<int>(panel.order.size());
    if (before > 0) panel.row_borders.push_back({before, begins_node(cluster, device)});
    for (const ExpertId expert : layer.primaries_of_device[d]) panel.order.push_back(expert.value);
  }
  panel.col_borders = panel.row_borders;
  return panel;
}

report::Section affinity_section(const Plan& plan, const Cluster& cluster, const PlanEffect& effect,
                                 std::span<const LayerStats> stats) {
  const std::int64_t experts = plan.num_experts;
  report::HeatMap map;
  map.row_name = map.col_name = "expert", map.value_name = "tokens that chose both";
  map.rows = map.cols = plan.num_experts;
  map.symmetric = true;
  map.scale = report::Scale::kRoot;
  map.panels = {"In the experts\u2019 own order", "Grouped by " + plan.strategy};
  const auto kept = layers_within(kMostAffinities, experts * (experts + 1) / 2, stats.size());
  for (const std::size_t m : kept) {
    report::HeatPanel before{{stats[m].affinity.begin(), stats[m].affinity.end()}};
    map.layers.push_back({static_cast<int>(m), {std::move(before), grouped(plan.layers[m], cluster)}});
  }
  const LayerFigures after = mean_of(effect.figures), vanilla = mean_of(effect.default_figures);
  return {"Affinity",
          fmt::format(
              "How often two experts were chosen by the same token. On the right the experts of each "
              "device stand together; thin lines part devices, thick ones nodes, and what lies inside a "
              "block on the diagonal stays home. {} keeps {} of it on a device and {} in a node; the "
              "default placement {} and {}.{}",
              plan.strategy, percent(after.kept_on_device), percent(after.kept_in_node),
              percent(vanilla.kept_on_device), percent(vanilla.kept_in_node), said_of(kept, stats.size())),
          {std::move(map)}};
}

// A row a layer, each device's load over the mean of the devices.
std::vector<double> relative_loads(const std::vector<std::vector<double>>& of_layers) {
  std::vector<double> values;
  for (const std::vector<double>& loads : of_layers) {
    const double total = std::accumulate(loads.begin(), loads.end(), 0.0);
    for (const double load : loads)
      values.push_back(total > 0 ? load * static_cast<double>(loads.size()) / total : 0);
  }
  return values;
}

double mean_of_highest(const std::vector<std::vector<double>>& of_layers) {
  double sum = 0;
  for (const std::vector<double>& loads : of_layers) {
    const double total = std::accumulate(loads.begin(), loads.end(), 0.0);
    sum += total > 0 ? std::ranges::max(loads) * static_cast<double>(loads.size()) / total : 1;
  }
  return of_layers.empty() ? 1 : sum / static_cast<double>(of_layers.size());
}

report::HeatMap device_loads(const Plan& plan, const Cluster& cluster, const PageLoads& loads,
                             const std::vector<std::string>& layers) {
  report::HeatMap map{"Load of each device",
                      "Assignments over the mean of the devices: 1 is even. A click on a row shows its layer "
                      "everywhere.",
                      "layer",
                      "device",
                      "times the mean",
                      plan.num_moe_layers(),
                      plan.num_devices(),
                      {}};
  map.panels = {"vanilla", plan.strategy};
  map.row_labels = layers;
  map.scale = report::Scale::kDiverging;
  map.middle = 1;
  map.rows_are_layers = true;
  const auto borders = device_borders(cluster, false);
  map.layers.push_back(
      {-1,
       {{relative_loads(loads.before), {}, {}, borders}, {relative_loads(loads.after), {}, {}, borders}}});
  return map;
}

report::HeatMap expert_loads(const Plan& plan, const PageLoads& loads,
                             const std::vector<std::string>& layers) {
  report::HeatMap map{"Load of each expert",
                      "",
                      "layer",
                      "expert",
                      "tokens that chose it",
                      static_cast<int>(loads.of_experts.size()),
                      plan.num_experts,
                      {}};
  map.row_labels = layers;
  map.rows_are_layers = true;
  report::HeatPanel panel;
  for (const std::vector<double>& one : loads.of_experts)
    panel.values.insert(panel.values.end(), one.begin(), one.end());
  map.layers.push_back({-1, {std::move(panel)}});
  return map;
}

PageLoads loads_of(const PlanEffect& effect, std::span<const LayerStats> stats) {
  PageLoads loads;
  for (const auto& one : effect.before.load) loads.before.emplace_back(one.begin(), one.end());
  for (const auto& one : effect.after.load) loads.after.emplace_back(one.begin(), one.end());
  for (const LayerStats& one : stats) loads.of_experts.emplace_back(one.load.begin(), one.load.end());
  return loads;
}

// Devices side by side, so that at most kMostDevices are told apart.
struct Bins {
  int devices = 1, size = 1;
  int count() const { return (devices + size - 1) / size; }
  std::string name(int bin) const {
    const int first = bin * size, last = std::min(first + size, devices) - 1;
    return first == last ? std::to_string(first) : fmt::format("{}\u2013{}", first, last);
  }
  std::vector<double> sum(const std::vector<double>& vectors) const {
    const auto bins = static_cast<std::size_t>(count()), each = static_cast<std::size_t>(size),
               all = static_cast<std::size_t>(devices);
    std::vector<double> out(bins * bins, 0);
    for (std::size_t from = 0; from < all; ++from)
      for (std::size_t to = 0; to < all; ++to)
        out[from / each * bins + to / each] += vectors[from * all + to];
    return out;
  }
};

std::string change_of(double before, double after) {
  const std::string change = before > 0 ? fmt::format(" ({}{:.1f} %)", after < before ? "\u2212" : "+",
                                                      100 * std::abs(after / before - 1))
                                        : "";
  return report::short_number(before) + " \u2192 " + report::short_number(after) + change;
}

report::Section traffic_section(const Plan& plan, const Cluster& cluster, const PlanEffect& effect) {
  const Bins bins{cluster.num_devices(), (cluster.num_devices() + kMostDevices - 1) / kMostDevices};
  report::HeatMap map;
  map.row_name = "from device", map.col_name = "to device", map.value_name = "vectors dispatched";
  map.rows = map.cols = bins.count();
  map.panels = {"vanilla", plan.strategy};
  for (int bin = 0; bin < bins.count(); ++bin) map.row_labels.push_back(bins.name(bin));
  map.col_labels = map.row_labels;
  const auto borders = bins.size == 1 ? device_borders(cluster, false) : std::vector<report::Border>{};
  const auto kept =
      layers_within(kMostVectors, 2 * std::int64_t{map.rows} * map.cols, effect.after.vectors.size());
  map.summable = kept.size() == effect.after.vectors.size();
  for (const std::size_t m : kept)
    map.layers.push_back({static_cast<int>(m),
                          {{bins.sum(effect.before.vectors[m]), {}, borders, borders},
                           {bins.sum(effect.after.vectors[m]), {}, borders, borders}}});
  return {"Traffic between devices",
          fmt::format("Vectors that dispatch sends from device to device, under the same dispatch for both. "
                      "All layers: across nodes {}, inside nodes {}.{}",
                      change_of(vectors_across(effect.before, cluster, true),
                                vectors_across(effect.after, cluster, true)),
                      change_of(vectors_across(effect.before, cluster, false),
                                vectors_across(effect.after, cluster, false)),
                      said_of(kept, effect.after.vectors.size())),
          {std::move(map)}};
}

}  // namespace

report::Section load_section(const Plan& plan, const Cluster& cluster, const PageLoads& loads,
                             const std::vector<std::string>& layers, const std::string& how) {
  return {"Load",
          fmt::format("The fullest device does {:.2f} times the mean under the default placement and {:.2f} "
                      "times under {} ({}).",
                      mean_of_highest(loads.before), mean_of_highest(loads.after), plan.strategy, how),
          {device_loads(plan, cluster, loads, layers), expert_loads(plan, loads, layers)}};
}

report::Section holders_section(const Plan& plan, const Cluster& cluster, report::Table by_layer) {
  report::HeatMap map;
  map.row_name = "device", map.col_name = "expert";
  map.rows = plan.num_devices(), map.cols = plan.num_experts;
  map.row_labels = device_names(cluster);
  map.scale = report::Scale::kCategories;
  map.categories = {"no copy", "replica", "primary copy"};
  const auto kept = layers_within(kMostHolders, std::int64_t{map.rows} * map.cols, plan.layers.size());
  for (const std::size_t m : kept) {
    report::HeatPanel panel{
        std::vector<double>(static_cast<std::size_t>(map.rows) * static_cast<std::size_t>(map.cols), 0)};
    panel.row_borders = device_borders(cluster, false);
    for (std::size_t d = 0; d < static_cast<std::size_t>(map.rows); ++d) {
      double* row = panel.values.data() + d * static_cast<std::size_t>(map.cols);
      for (const ExpertId expert : plan.layers[m].replicas_of_device[d]) row[expert.idx()] = 1;
      for (const ExpertId expert : plan.layers[m].primaries_of_device[d]) row[expert.idx()] = 2;
    }
    map.layers.push_back({static_cast<int>(m), {std::move(panel)}});
  }
  by_layer.title = "Layer by layer";
  return {
      "Who holds what",
      fmt::format("The copies on each device under {}.{}", plan.strategy, said_of(kept, plan.layers.size())),
      {std::move(map), std::move(by_layer)}};
}

double vectors_across(const Replay& replayed, const Cluster& cluster, bool nodes) {
  double sum = 0;
  const auto devices = static_cast<std::size_t>(cluster.num_devices());
  for (const std::vector<double>& vectors : replayed.vectors)
    for (std::size_t i = 0; i < vectors.size(); ++i) {
      const DeviceId from(static_cast<std::int32_t>(i / devices)), to(static_cast<std::int32_t>(i % devices));
      if ((cluster.node_of(from) != cluster.node_of(to)) == nodes) sum += vectors[i];
    }
  return sum;
}

Result<PlanEffect> effect_of(const Trace& trace, const Plan& plan, const Cluster& cluster, Dispatch dispatch,
                             std::span<const LayerStats> stats, std::vector<LayerFigures> figures) {
  const Plan vanilla = vanilla_plan(plan.model, plan.num_experts, plan.decoder_layers, cluster);
  PlanEffect effect;
  effect.before = GRACE_TRY(replay(trace, vanilla, cluster, dispatch));
  effect.after = GRACE_TRY(replay(trace, plan, cluster, dispatch));
  effect.default_figures = figures_of(vanilla, stats, 0);
  effect.figures = std::move(figures);
  return effect;
}

void add_plan_sections(report::Page& page, const Plan& plan, const Cluster& cluster, const PlanEffect& effect,
                       std::span<const LayerStats> stats) {
  page.layers.clear();
  for (const int layer : plan.decoder_layers) page.layers.push_back(std::to_string(layer));
  page.sections.push_back(affinity_section(plan, cluster, effect, stats));
  page.sections.push_back(load_section(plan, cluster, loads_of(effect, stats), page.layers,
                                       "mean over layers, all tokens at once"));
  page.sections.push_back(traffic_section(plan, cluster, effect));
  page.sections.push_back(holders_section(plan, cluster, table_of(plan, effect.figures)));
}

Json holders_json(const Plan& plan) {
  Json holders = Json::array();
  for (const LayerPlan& layer : plan.layers) {
    Json devices = Json::array();
    for (int d = 0; d < plan.num_devices(); ++d) {
      Json copies = Json::array();
      for (const ExpertId expert : layer.experts_on(DeviceId(d))) copies.push_back(expert.value);
      devices.push_back(std::move(copies));
    }
    holders.push_back(std::move(devices));
  }
  return holders;
}

Json json_of(const Plan& plan, const PlanEffect& effect, std::span<const LayerStats> stats) {
  Json affinity = Json::array(), experts = Json::array();
  for (const LayerStats& one : stats) {
    affinity.push_back(one.affinity);
    experts.push_back(one.load);
  }
  return {{"strategy", plan.strategy},
          {"decoder_layers", plan.decoder_layers},
          {"layers", json_of(effect.figures)},
          {"default_layers", json_of(effect.default_figures)},
          {"affinity", std::move(affinity)},
          {"expert_load", std::move(experts)},
          {"experts_of_device", holders_json(plan)},
          {"device_load", {{"vanilla", effect.before.load}, {"plan", effect.after.load}}},
          {"vectors", {{"vanilla", effect.before.vectors}, {"plan", effect.after.vectors}}}};
}

namespace {

// Lanes of a rank: what it does, and what it waits for.
int work_lane(std::size_t rank) { return static_cast<int>(2 * rank); }
int message_lane(std::size_t rank) { return work_lane(rank) + 1; }

void add_recorded_spans(std::span<const StepSpan> spans, std::size_t step, std::size_t layer,
                        std::size_t rank, report::Timeline& timeline) {
  for (const auto& [of_step, span] : spans) {
    if (std::cmp_not_equal(of_step, step) || std::cmp_not_equal(span.layer, layer)) continue;
    const bool is_message = span.activity == Activity::kDispatch || span.activity == Activity::kCombine;
    timeline.spans.push_back({is_message ? message_lane(rank) : work_lane(rank), span.begin_s, span.end_s,
                              std::string(name_of(span.activity))});
  }
}

void add_counted_spans(const LayerCounters& one, std::size_t rank, report::Timeline& timeline) {
  const int work = work_lane(rank), messages = message_lane(rank);
  timeline.spans.push_back({work, one.dispatch_begin_s - one.gate_s, one.dispatch_begin_s, "gate"});
  timeline.spans.push_back({messages, one.dispatch_begin_s, one.dispatch_end_s, "dispatch"});
  timeline.spans.push_back({work, one.combine_begin_s - one.experts_s, one.combine_begin_s, "experts"});
  timeline.spans.push_back({messages, one.combine_begin_s, one.combine_end_s, "combine"});
}

void begin_at_zero(report::Timeline& timeline) {
  if (timeline.spans.empty()) return;
  const double first = std::ranges::min(timeline.spans, {}, &report::TimelineSpan::begin_s).begin_s;
  for (report::TimelineSpan& span : timeline.spans) {
    span.begin_s -= first;
    span.end_s -= first;
  }
}

}  // namespace

report::Timeline layer_timeline(const RunRecord& record, std::size_t step, std::size_t layer) {
  report::Timeline timeline;
  timeline.title = fmt::format("One layer, {}: step {}, moe layer {}", record.strategy, step, layer);
  timeline.note =
      fmt::format("Measured{}.", record.one_clock ? "" : "; the ranks' clocks are set by one barrier");
  for (std::size_t rank = 0; rank < record.steps.size(); ++rank) {
    timeline.lanes.push_back(fmt::format("rank {}", rank));
    timeline.lanes.emplace_back("messages");
    if (step >= record.steps[rank].size() || layer >= record.steps[rank][step].size()) continue;
    if (rank < record.spans.size() && !record.spans[rank].empty())
      add_recorded_spans(record.spans[rank], step, layer, rank, timeline);
    else
      add_counted_spans(record.steps[rank][step][layer], rank, timeline);
  }
  begin_at_zero(timeline);
  return timeline;
}

}  // namespace grace::app
