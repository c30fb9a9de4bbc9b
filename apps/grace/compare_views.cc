#include "compare_views.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "grace/files/json_file.h"

namespace grace::app {
namespace {

struct Column {
  const char* figure;
  const char* title;
  double scale;
  int digits;
  bool spread;
};
constexpr Column kColumns[] = {
    {"slots_per_device_max", "fullest", 1, 2, false},
    {"copies_per_layer", "copies", 1, 1, false},
    {"remote_nodes_per_token", "remote nodes", 1, 3, true},
    {"devices_per_token", "devices", 1, 2, true},
    {"load_max_over_mean", "max/mean", 1, 3, true},
    {"judge_slow", "judge-slow", 1, 2, true},
    {"judge_fast", "judge-fast", 1, 2, true},
    {"layer_time", "layer [us]", 1e6, 0, true},
    {"idle", "idle [us]", 1e6, 0, true},
    {"plan_seconds", "plan [s]", 1, 1, false},
};

std::string cell_of(const Spread& value, const Column& column) {
  std::string text = fmt::format("{:.{}f}", value.mean * column.scale, column.digits);
  if (column.spread && value.deviation > 0)
    text += fmt::format(" ±{:.{}f}", value.deviation * column.scale, column.digits);
  return text;
}

std::string_view column_title(std::string_view figure) {
  return std::ranges::find(kColumns, figure, [](const Column& c) { return std::string_view(c.figure); })
      ->title;
}

const CompareRow* find_row(const Comparison& comparison, std::string_view name) {
  const auto found = std::ranges::find(comparison.rows, name, &CompareRow::name);
  return found == comparison.rows.end() ? nullptr : &*found;
}

std::string label_of(const CompareRow& row) {
  const std::string name = row.lossy ? row.name + " (lossy)" : row.name;
  return row.slots.empty() ? name : name + " @" + row.slots;
}

}  // namespace

report::Table table_of(const Comparison& comparison, const std::string& title) {
  report::Table table{title, {"strategy"}, {}};
  const CompareRow* grace = find_row(comparison, "grace");
  const auto has = [&](const Column& column) {
    return comparison.rows.front().figures.contains(column.figure);
  };
  for (const Column& column : kColumns) {
    if (!has(column)) continue;
    table.columns.push_back(column.title);
    if (grace != nullptr && std::string_view(column.title).starts_with("judge"))
      table.columns.push_back("vs grace");
  }
  table.sortable = true;
  table.chosen_row = static_cast<int>(comparison.recommended);
  for (const CompareRow& row : comparison.rows) {
    auto& cells = table.rows.emplace_back(1, label_of(row));
    for (const Column& column : kColumns) {
      if (!has(column)) continue;
      const Spread& value = row.figures.at(column.figure);
      cells.push_back(cell_of(value, column));
      if (grace != nullptr && std::string_view(column.title).starts_with("judge"))
        cells.push_back(
            fmt::format("{:+.1f} %", 100 * (value.mean / grace->figures.at(column.figure).mean - 1)));
    }
  }
  return table;
}

report::Table certificates_of(const Comparison& comparison) {
  report::Table table{
      "Certificates: the first judge batch of the first split, bounds over what the plan's devices hold; "
      "overfit: judged over in-sample",
      {"strategy", "yardstick", "routed", "routing bound", "gap", "placement bound (loose)", "max/mean",
       "least possible", "overfit"},
      {}};
  for (const CompareRow& row : comparison.rows) {
    if (!row.certificate) continue;
    const Certificate& bounds = row.certificate->bounds;
    table.rows.push_back(
        {label_of(row), std::string(name_of(row.certificate->aim)), fmt::format("{:.3f}", bounds.routed),
         fmt::format("{:.3f}", bounds.routing_bound), fmt::format("{:.1f} %", 100 * bounds.gap()),
         fmt::format("{:.2f}", bounds.placement_bound), fmt::format("{:.3f}", bounds.max_over_mean),
         fmt::format("{:.3f}", bounds.least_max_over_mean),
         row.certificate->overfit == 0 ? std::string("-")
                                       : fmt::format("{:+.1f} %", 100 * row.certificate->overfit)});
  }
  return table;
}

Json json_of(const Comparison& comparison) {
  Json bounds = Json::array();
  for (const CompareRow& row : comparison.rows) {
    if (!row.certificate) continue;
    const Certificate& certificate = row.certificate->bounds;
    bounds.push_back({{"name", row.name},
                      {"slots", row.slots.empty() ? Json(nullptr) : Json(row.slots)},
                      {"yardstick", name_of(row.certificate->aim)},
                      {"routed", certificate.routed},
                      {"routing_bound", certificate.routing_bound},
                      {"gap", certificate.gap()},
                      {"placement_bound", certificate.placement_bound},
                      {"load_max_over_mean", certificate.max_over_mean},
                      {"least_max_over_mean", certificate.least_max_over_mean},
                      {"overfit", row.certificate->overfit}});
  }
  Json rows = Json::array();
  for (const CompareRow& row : comparison.rows) {
    Json json = {{"name", row.name},
                 {"lossy", row.lossy},
                 {"slots", row.slots.empty() ? Json(nullptr) : Json(row.slots)}};
    Json spread;
    for (const char* absent : {"layer_time", "idle", "bytes_cross_node", "bytes_intra_node"})
      json[absent] = nullptr;
    for (const auto& [name, value] : row.figures) {
      json[name] = value.mean;
      spread[name] = value.deviation;
    }
    json["heldout"] = true;
    if (row.name.starts_with("eplb")) json["second_copies_moved"] = row.second_copies_moved;
    json["spread"] = std::move(spread);
    rows.push_back(std::move(json));
  }
  const CompareRow& chosen = comparison.rows[comparison.recommended];
  const CompareRow& best = comparison.rows[comparison.best];
  return {{"strategies", std::move(rows)},
          {"lower_bounds", std::move(bounds)},
          {"recommendation",
           {{"name", chosen.name},
            {"slots", chosen.slots.empty() ? Json(nullptr) : Json(chosen.slots)},
            {"best", best.name},
            {"measure", comparison.measure},
            {"text", comparison.recommendation}}}};
}

report::Table table_of(const Transfer& transfer, const std::vector<std::string>& names,
                       const std::string& measure) {
  report::Table table{
      fmt::format("{}: plan on row, serve on column ({}; in brackets: over the plan made for the column)",
                  transfer.contender, measure),
      {"planned on"},
      {}};
  for (const std::string& name : names) table.columns.push_back(name);
  for (std::size_t i = 0; i < transfer.value.size(); ++i) {
    auto& row = table.rows.emplace_back(1, i < names.size() ? names[i] : std::string("all together"));
    for (std::size_t j = 0; j < names.size(); ++j) {
      const double own = transfer.value[j][j].mean;
      row.push_back(fmt::format("{:.4g} ±{:.2g} ({:+.1f} %)", transfer.value[i][j].mean,
                                transfer.value[i][j].deviation, 100 * (transfer.value[i][j].mean / own - 1)));
    }
  }
  return table;
}

Json json_of(const Transfer& transfer, const std::vector<std::string>& names) {
  Json rows = Json::array();
  for (std::size_t i = 0; i < transfer.value.size(); ++i) {
    Json row = {{"planned_on", i < names.size() ? Json(names[i]) : Json("all")}};
    for (std::size_t j = 0; j < names.size(); ++j)
      row["served"].push_back({{"trace", names[j]},
                               {"value", transfer.value[i][j].mean},
                               {"spread", transfer.value[i][j].deviation},
                               {"over_own", transfer.value[i][j].mean / transfer.value[j][j].mean - 1}});
    rows.push_back(std::move(row));
  }
  return {{"name", transfer.contender}, {"matrix", std::move(rows)}};
}

std::string measure_name(const Comparison& comparison) {
  return comparison.measure == "layer_time" ? "layer time [\u00b5s]" : "judge-slow";
}

namespace {

double scale_of(const Comparison& comparison) { return comparison.measure == "layer_time" ? 1e6 : 1; }

// Rows from the lowest measure to the highest.
std::vector<std::size_t> by_measure(const Comparison& comparison) {
  std::vector<std::size_t> order(comparison.rows.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(
      order, {}, [&](std::size_t i) { return comparison.rows[i].figures.at(comparison.measure).mean; });
  return order;
}

// The best budget of each strategy, and what is recommended.
report::BarChart bars_of(const Comparison& comparison) {
  report::BarChart bars{measure_name(comparison), "", {}, {{"", {}}}};
  const double scale = scale_of(comparison);
  std::vector<std::string> seen;
  for (const std::size_t i : by_measure(comparison)) {
    const CompareRow& row = comparison.rows[i];
    const bool chosen = i == comparison.recommended;
    if (!chosen && std::ranges::find(seen, row.name) != seen.end()) continue;
    seen.push_back(row.name);
    if (chosen) bars.chosen = static_cast<int>(bars.labels.size());
    const Spread& value = row.figures.at(comparison.measure);
    bars.labels.push_back(label_of(row));
    bars.series.front().values.push_back(value.mean * scale);
    bars.series.front().spread.push_back(value.deviation * scale);
  }
  return bars;
}

// The table of a page: the best first, what decides in front.
report::Table ordered_table(const Comparison& comparison) {
  const report::Table table = table_of(comparison, "");
  report::Table ordered = table;
  ordered.rows.clear();
  for (const std::size_t i : by_measure(comparison)) {
    if (i == comparison.recommended) ordered.chosen_row = static_cast<int>(ordered.rows.size());
    ordered.rows.push_back(table.rows[i]);
  }
  const auto found = std::ranges::find(ordered.columns, column_title(comparison.measure));
  const auto at = found - ordered.columns.begin();
  const auto to_front = [&](std::vector<std::string>& cells) {
    std::rotate(cells.begin() + 1, cells.begin() + at, cells.begin() + at + 1);
  };
  to_front(ordered.columns);
  for (auto& row : ordered.rows) to_front(row);
  return ordered;
}

// A line through the budgets of each contender that was given several; the others as they are.
report::PointChart frontier_of(const Comparison& comparison) {
  report::PointChart chart{
      "", "", "copies on the fullest device, mean over layers", measure_name(comparison), {}};
  const double scale = scale_of(comparison);
  report::PointSeries singles{"", {}, false};
  for (std::size_t i = 0; i < comparison.rows.size(); ++i) {
    const CompareRow& row = comparison.rows[i];
    const Spread& value = row.figures.at(comparison.measure);
    report::Point point{row.figures.at("slots_per_device_max").mean, value.mean * scale,
                        value.deviation * scale, label_of(row), i == comparison.recommended};
    if (std::ranges::count(comparison.rows, row.name, &CompareRow::name) < 2) {
      singles.points.push_back(std::move(point));
      continue;
    }
    auto series = std::ranges::find(chart.series, row.name, &report::PointSeries::name);
    if (series == chart.series.end()) series = chart.series.insert(chart.series.end(), {row.name, {}, true});
    series->points.push_back(std::move(point));
  }
  for (report::PointSeries& series : chart.series)
    std::ranges::stable_sort(series.points, {}, &report::Point::x);
  chart.series.push_back(std::move(singles));
  return chart;
}

std::vector<report::KeyFigure> key_figures_of(const Comparison& comparison) {
  const CompareRow& chosen = comparison.rows[comparison.recommended];
  const CompareRow* vanilla = find_row(comparison, "vanilla");
  std::vector<report::KeyFigure> figures;
  if (vanilla != nullptr && vanilla != &chosen) {
    const double before = vanilla->figures.at(comparison.measure).mean;
    const double change = before > 0 ? chosen.figures.at(comparison.measure).mean / before - 1 : 0;
    figures.push_back({fmt::format("{}{:.1f} %", change < 0 ? "\u2212" : "+", 100 * std::abs(change)),
                       std::string(comparison.measure == "layer_time" ? "layer time" : "judge-slow") +
                           ", against the default placement"});
  } else {
    figures.push_back(
        {fmt::format("{:.4g}", chosen.figures.at(comparison.measure).mean * scale_of(comparison)),
         measure_name(comparison)});
  }
  const auto pair = [&](const char* figure, const char* format, const char* name) {
    std::string text = fmt::format(fmt::runtime(format), chosen.figures.at(figure).mean);
    if (vanilla != nullptr && vanilla != &chosen)
      text = fmt::format(fmt::runtime(format), vanilla->figures.at(figure).mean) + " \u2192 " + text;
    figures.push_back({text, name});
  };
  pair("remote_nodes_per_token", "{:.2f}", "other nodes a token visits");
  pair("load_max_over_mean", "{:.2f}", "fullest device's load over the mean");
  pair("slots_per_device_max", "{:.3g}", "copies on the fullest device");
  return figures;
}

}  // namespace

void add_comparison(report::Page& page, const Comparison& comparison) {
  page.verdict = comparison.recommendation;
  page.key_figures = key_figures_of(comparison);
  report::Section strategies{"Strategies",
                             "Every figure is of tokens that had no part in the plan: mean \u00b1 sample "
                             "deviation over the splits. Lower is better everywhere; the best stands first.",
                             {ordered_table(comparison)}};
  strategies.pictures.emplace_back(bars_of(comparison));
  page.sections.push_back(std::move(strategies));
  page.sections.push_back(
      {"What memory buys",
       "Each point is a strategy; a line joins one under several budgets. Down is better, "
       "left is cheaper.",
       {frontier_of(comparison)}});
  if (report::Table bounds = certificates_of(comparison); !bounds.rows.empty()) {
    bounds.title.clear();
    bounds.sortable = true;
    page.sections.push_back(
        {"Certificates",
         "How far each plan is from what is possible, on the first judge batch of the first split. No "
         "routing "
         "over a plan's copies goes below the routing bound, and no placement within its slots below the "
         "placement bound, which is loose. Overfit is what held-out tokens cost more than those planned on.",
         {std::move(bounds)}});
  }
}

report::HeatMap heat_map_of(std::span<const Transfer> transfers, const std::vector<std::string>& names) {
  report::HeatMap map;
  map.row_name = "planned on", map.col_name = "serves";
  map.value_name = "over the plan made for what is served";
  map.unit = " %";
  map.scale = report::Scale::kDiverging;
  map.rows = static_cast<int>(names.size()) + 1, map.cols = static_cast<int>(names.size());
  map.row_labels = map.col_labels = names;
  map.row_labels.emplace_back("all of them");
  report::HeatLayer& layer = map.layers.emplace_back();
  for (const Transfer& transfer : transfers) {
    map.panels.push_back(transfer.contender);
    report::HeatPanel& panel = layer.panels.emplace_back();
    for (const std::vector<Spread>& row : transfer.value)
      for (std::size_t j = 0; j < row.size(); ++j)
        panel.values.push_back(std::round(1000 * (row[j].mean / transfer.value[j][j].mean - 1)) / 10);
    panel.row_borders = {{map.cols, true}};
  }
  return map;
}

}  // namespace grace::app
