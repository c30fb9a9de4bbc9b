#include "report_sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "compare_views.h"
#include "grace/files/json_file.h"
#include "page.h"
#include "run_summary.h"

namespace grace::app {

report::Section knee_section(std::span<const KneePoint> curve) {
  const std::size_t knee = knee_of(curve);
  report::PointChart chart{
      "", "", "S: deviation of group sizes", "U: share of affinity kept [%]", {{"", {}, true}}};
  for (std::size_t i = 0; i < curve.size(); ++i)
    chart.series.front().points.push_back({curve[i].size_deviation, 100 * curve[i].affinity_kept, 0,
                                           fmt::format("r {:.2f}", curve[i].r), i == knee});
  return {
      "How uneven groups may be",
      fmt::format("The published method lets groups differ in size by r. More room keeps more affinity (up) "
                  "and costs balance (right); its choice is the knee, r {:.2f}.",
                  curve[knee].r),
      {std::move(chart)}};
}

Json json_of(std::span<const KneePoint> curve) {
  Json points = Json::array();
  for (const KneePoint& point : curve)
    points.push_back(
        {{"r", point.r}, {"size_deviation", point.size_deviation}, {"affinity_kept", point.affinity_kept}});
  return {{"points", std::move(points)}, {"r", curve[knee_of(curve)].r}};
}

DriftParts parts_of(std::span<const Trace> traces, std::span<const std::string> names) {
  if (traces.size() > 1) return {{traces.begin(), traces.end()}, {names.begin(), names.end()}};
  constexpr int kMostParts = 4;
  const int sequences = traces.front().num_sequences(), count = std::min(kMostParts, sequences / 2);
  DriftParts parts;
  for (int p = 0; count > 1 && p < count; ++p) {
    const int begin = sequences * p / count, end = sequences * (p + 1) / count;
    std::vector<int> of_part(static_cast<std::size_t>(end - begin));
    std::iota(of_part.begin(), of_part.end(), begin);
    parts.traces.push_back(select_sequences(traces.front(), of_part));
    parts.names.push_back(fmt::format("part {}", p + 1));
  }
  return parts;
}

report::Section drift_section(std::span<const Transfer> transfers, const DriftParts& parts, bool one_trace,
                              const std::string& measure) {
  return {
      "Drift",
      fmt::format(
          "What a plan costs when it serves another text than it was made from: {} over that of the "
          "plan made for what is served, on held-out sequences.{}",
          measure,
          one_trace ? fmt::format(" The trace's sequences, in order, in {} parts.", parts.names.size()) : ""),
      {heat_map_of(transfers, parts.names)}};
}

namespace {

report::Table run_table(const RunRecord& record) {
  const RunSummary sum = summarise(record);
  report::Table table{"", {"", "whole", "prefill", "decode"}, {}};
  const auto row = [&](const char* name, const auto& text) {
    table.rows.push_back({name, text(sum.whole), text(sum.prefill), text(sum.decode)});
  };
  const auto seconds = [&](const char* name, double PhaseSummary::*figure) {
    row(name, [&](const PhaseSummary& phase) { return fmt::format("{:.6f} s", phase.*figure); });
  };
  table.rows.push_back({"prompts", std::to_string(record.prompts), "", ""});
  table.rows.push_back({"new tokens", std::to_string(record.new_tokens), "", ""});
  row("bytes across nodes", [](const PhaseSummary& p) { return std::to_string(p.cross_node_bytes()); });
  row("bytes across nodes, busiest node's",
      [](const PhaseSummary& p) { return std::to_string(p.busiest_node_bytes); });
  row("bytes inside nodes", [](const PhaseSummary& p) { return std::to_string(p.intra_node_bytes()); });
  row("load deviation",
      [](const PhaseSummary& p) { return fmt::format("{:.1f} %", 100 * p.load_deviation); });
  seconds("MoE layers, critical path", &PhaseSummary::critical_s);
  seconds("  exchange", &PhaseSummary::exchange_s);
  seconds("  experts", &PhaseSummary::experts_s);
  seconds("MoE layers by the clock", &PhaseSummary::moe_s);
  seconds("  all-to-all", &PhaseSummary::all_to_all_s);
  seconds("  idle", &PhaseSummary::idle_s);
  table.rows.push_back({"wall time", fmt::format("{:.6f} s", record.wall_s()),
                        fmt::format("{:.6f} s", record.prefill_s), fmt::format("{:.6f} s", record.decode_s)});
  return table;
}

Json json_of(const PhaseSummary& phase) {
  return {{"cross_node_bytes", phase.cross_node_bytes()},
          {"busiest_node_bytes", phase.busiest_node_bytes},
          {"intra_node_bytes", phase.intra_node_bytes()},
          {"load_deviation", phase.load_deviation},
          {"critical_s", phase.critical_s},
          {"exchange_s", phase.exchange_s},
          {"experts_s", phase.experts_s},
          {"moe_s", phase.moe_s},
          {"all_to_all_s", phase.all_to_all_s},
          {"idle_s", phase.idle_s}};
}

Json json_of(const RunSummary& sum) {
  return {{"whole", json_of(sum.whole)}, {"prefill", json_of(sum.prefill)}, {"decode", json_of(sum.decode)}};
}

}  // namespace

report::Section run_section(const RunRecord& record) {
  return {"A run",
          fmt::format("{} on {}, {}, {}, {} results{}.", record.strategy, record.cluster, record.transport,
                      record.dispatch, record.combine, record.aligned ? ", aligned" : ""),
          {run_table(record), layer_timeline(record, 0, 0)}};
}

Json run_json(const RunRecord& record) { return json_of(summarise(record)); }

}  // namespace grace::app
