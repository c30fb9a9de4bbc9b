#include "compare_views.h"

#include <fmt/format.h>

#include <algorithm>

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

void add_pictures(report::Page& page, const Comparison& comparison) {
  const auto chart = [&](const char* figure, const std::string& title, double scale) {
    report::BarChart bars{title, "Held-out tokens, mean over splits; lower is better.", {}, {{title, {}}}};
    for (const CompareRow& row : comparison.rows) {
      if (!row.figures.contains(figure)) return;
      bars.labels.push_back(label_of(row));
      bars.series.front().values.push_back(row.figures.at(figure).mean * scale);
    }
    page.bars.push_back(std::move(bars));
  };
  chart("layer_time", "layer time [us]", 1e6);
  chart("judge_slow", "judge-slow", 1);
  chart("judge_fast", "judge-fast", 1);
  chart("remote_nodes_per_token", "remote nodes a token", 1);
  chart("load_max_over_mean", "max/mean load", 1);
  // The frontier: what memory buys.
  std::vector<std::string> names;
  for (const CompareRow& row : comparison.rows)
    if (!row.slots.empty() && std::ranges::find(names, row.name) == names.end()) names.push_back(row.name);
  for (const std::string& name : names) {
    report::BarChart bars{name + ": what memory buys",
                          comparison.measure + " by slots a device and layer",
                          {},
                          {{comparison.measure, {}}}};
    for (const CompareRow& row : comparison.rows) {
      if (row.name != name) continue;
      bars.labels.push_back(row.slots);
      bars.series.front().values.push_back(row.figures.at(comparison.measure).mean);
    }
    if (bars.labels.size() > 2) page.bars.push_back(std::move(bars));
  }
}

}  // namespace grace::app
