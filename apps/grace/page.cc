#include "page.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace grace::app {
namespace {

std::string layer_name(const Plan& plan, std::size_t m) {
  return fmt::format("layer {}", plan.decoder_layers[m]);
}

std::vector<std::string> device_names(const Cluster& cluster) {
  std::vector<std::string> names;
  for (int d = 0; d < cluster.num_devices(); ++d)
    names.push_back(fmt::format("{} (node {})", d, cluster.node_of(DeviceId(d)).value));
  return names;
}

report::BarChart load_bars(const std::string& title, const Plan& plan, const Replay& replayed) {
  report::BarChart chart;
  chart.title = title;
  chart.note = "Assignments of the profiled tokens over the mean of the devices, by layer; 1 is even.";
  for (int d = 0; d < plan.num_devices(); ++d) chart.series.push_back({fmt::format("device {}", d), {}});
  for (std::size_t m = 0; m < replayed.load.size(); ++m) {
    chart.labels.push_back(std::to_string(plan.decoder_layers[m]));
    double total = 0;
    for (const std::int64_t load : replayed.load[m]) total += static_cast<double>(load);
    for (std::size_t d = 0; d < replayed.load[m].size(); ++d)
      chart.series[d].values.push_back(
          total > 0 ? static_cast<double>(replayed.load[m][d] * plan.num_devices()) / total : 0);
  }
  return chart;
}

report::LayeredHeatMap expert_loads(const Plan& plan, std::span<const LayerStats> stats) {
  report::HeatMap map;
  map.row_name = "layer", map.col_name = "expert";
  map.rows = static_cast<int>(stats.size()), map.cols = plan.num_experts;
  for (std::size_t m = 0; m < stats.size(); ++m) {
    map.row_labels.push_back(std::to_string(plan.decoder_layers[m]));
    map.values.insert(map.values.end(), stats[m].load.begin(), stats[m].load.end());
  }
  return {"Load of each expert", "Tokens that chose it; a row is a layer.", {std::move(map)}};
}

// The affinity of each layer with the experts in the given order.
report::LayeredHeatMap affinity_maps(const Plan& plan, std::span<const LayerStats> stats, bool grouped) {
  report::LayeredHeatMap maps;
  maps.title = grouped ? "Affinity, ordered by group" : "Affinity, in the experts' own order";
  maps.note = grouped ? "The same counts with the experts of each device side by side: blocks on the "
                        "diagonal are what stays home."
                      : "How often two experts were chosen by the same token.";
  for (std::size_t m = 0; m < stats.size(); ++m) {
    std::vector<ExpertId> order;
    if (grouped) {
      for (const auto& group : plan.layers[m].primaries_of_device)
        order.insert(order.end(), group.begin(), group.end());
    } else {
      for (int e = 0; e < plan.num_experts; ++e) order.emplace_back(e);
    }
    report::HeatMap& map = maps.layers.emplace_back();
    map.title = layer_name(plan, m);
    map.row_name = map.col_name = "expert";
    map.rows = map.cols = static_cast<int>(order.size());
    for (const ExpertId row : order) {
      map.row_labels.push_back(std::to_string(row.value));
      for (const ExpertId column : order)
        map.values.push_back(static_cast<double>(stats[m].between(row, column)));
    }
    map.col_labels = map.row_labels;
  }
  return maps;
}

report::LayeredHeatMap holders(const Plan& plan, const Cluster& cluster) {
  report::LayeredHeatMap maps;
  maps.title = "Who holds what";
  maps.note = "2: the primary copy, 1: a replica, 0: none.";
  for (std::size_t m = 0; m < plan.layers.size(); ++m) {
    report::HeatMap& map = maps.layers.emplace_back();
    map.title = layer_name(plan, m);
    map.row_name = "device", map.col_name = "expert";
    map.rows = plan.num_devices(), map.cols = plan.num_experts;
    map.row_labels = device_names(cluster);
    map.values.assign(static_cast<std::size_t>(map.rows) * static_cast<std::size_t>(map.cols), 0);
    for (std::size_t d = 0; d < static_cast<std::size_t>(map.rows); ++d) {
      double* row = map.values.data() + d * static_cast<std::size_t>(map.cols);
      for (const ExpertId expert : plan.layers[m].primaries_of_device[d]) row[expert.idx()] = 2;
      for (const ExpertId expert : plan.layers[m].replicas_of_device[d]) row[expert.idx()] = 1;
    }
  }
  return maps;
}

report::LayeredHeatMap traffic_maps(const std::string& title, const Plan& plan, const Cluster& cluster,
                                    const Replay& replayed) {
  report::LayeredHeatMap maps;
  maps.title = title;
  maps.note = "Vectors dispatched for the profiled tokens.";
  for (std::size_t m = 0; m < replayed.vectors.size(); ++m) {
    report::HeatMap& map = maps.layers.emplace_back();
    map.title = layer_name(plan, m);
    map.row_name = "from device", map.col_name = "to device";
    map.rows = map.cols = plan.num_devices();
    map.row_labels = map.col_labels = device_names(cluster);
    map.values = replayed.vectors[m];
  }
  return maps;
}

}  // namespace

Status add_plan_pictures(report::Page& page, const Trace& trace, const Plan& plan, const Cluster& cluster,
                         Dispatch dispatch, std::span<const LayerStats> stats) {
  const Plan vanilla = vanilla_plan(plan.model, plan.num_experts, plan.decoder_layers, cluster);
  const Replay before = GRACE_TRY(replay(trace, vanilla, cluster, dispatch));
  const Replay after = GRACE_TRY(replay(trace, plan, cluster, dispatch));
  page.bars.push_back(load_bars("Load of each device, vanilla", vanilla, before));
  page.bars.push_back(load_bars("Load of each device, " + plan.strategy, plan, after));
  page.heat_maps.push_back(expert_loads(plan, stats));
  page.heat_maps.push_back(affinity_maps(plan, stats, false));
  page.heat_maps.push_back(affinity_maps(plan, stats, true));
  page.heat_maps.push_back(holders(plan, cluster));
  page.heat_maps.push_back(traffic_maps("Traffic between devices, vanilla", vanilla, cluster, before));
  page.heat_maps.push_back(traffic_maps("Traffic between devices, " + plan.strategy, plan, cluster, after));
  return {};
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
