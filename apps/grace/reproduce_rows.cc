#include "reproduce_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace grace::app {

void Row::add(const Figures& figures, const LayerSizes& sizes, const std::string& prefix) {
  add(prefix + "remote_nodes_per_token", figures.remote_nodes_per_token);
  add(prefix + "forwards_per_token", figures.forwards_per_token);
  add(prefix + "devices_per_token", figures.devices_per_token);
  add(prefix + "load_max_over_mean", figures.load_max_over_mean);
  add(prefix + "load_std", figures.load_std);
  const double bytes = 2 * sizes.vector_bytes();
  add(prefix + "bytes_cross_node", figures.cross_node_vectors * bytes);
  add(prefix + "bytes_intra_node", figures.intra_node_vectors * bytes);
  add(prefix + "all_to_all", figures.time.all_to_all_s());
  add(prefix + "compute", figures.time.compute_s);
  add(prefix + "idle", figures.time.idle_s());
  add(prefix + "layer_time", figures.time.total_s());
}

double Row::mean(const std::string& figure) const {
  const auto found = values.find(figure);
  return found == values.end() ? 0 : mean_of(found->second);
}

double mean_of(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double deviation_of(std::span<const double> values) {
  if (values.size() < 2) return 0;
  const double mean = mean_of(values);
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

report::Table table_of(std::string title, std::string row_name, std::span<const Row> rows,
                       std::span<const Column> columns) {
  report::Table table{std::move(title), {std::move(row_name)}, {}};
  for (const Column& column : columns) table.columns.push_back(column.title);
  for (const Row& row : rows) {
    auto& cells = table.rows.emplace_back(1, row.name);
    for (const Column& column : columns) {
      const auto found = row.values.find(column.figure);
      if (found == row.values.end() || found->second.empty()) {
        cells.push_back("-");
        continue;
      }
      std::string& cell =
          cells.emplace_back(fmt::format("{:.{}f}", mean_of(found->second) * column.scale, column.digits));
      const double deviation = deviation_of(found->second);
      if (column.spread && deviation > 0)
        cell += fmt::format(" ±{:.{}f}", deviation * column.scale, column.digits);
    }
  }
  return table;
}

Json json_of(std::span<const Row> rows) {
  Json list = Json::array();
  for (const Row& row : rows) {
    Json json = {{"name", row.name}};
    Json spread = Json::object();
    for (const auto& [figure, values] : row.values) {
      json[figure] = mean_of(values);
      spread[figure] = deviation_of(values);
    }
    json["spread"] = std::move(spread);
    list.push_back(std::move(json));
  }
  return list;
}

std::vector<double> change_of(const Row& row, const Row& base, const std::string& figure) {
  const auto mine = row.values.find(figure);
  const auto theirs = base.values.find(figure);
  std::vector<double> change;
  if (mine == row.values.end() || theirs == base.values.end()) return change;
  for (std::size_t s = 0; s < mine->second.size() && s < theirs->second.size(); ++s) {
    if (!(theirs->second[s] > 0)) return {};
    change.push_back(mine->second[s] / theirs->second[s] - 1);
  }
  return change;
}

bool Claim::is_opposite() const {
  constexpr double kTooSmall = 0.01;
  const double beyond = (mean() - neutral) * direction;
  return !ours.empty() && direction != 0 && -beyond > std::max(kTooSmall, deviation_of(ours));
}

std::string Claim::verdict() const {
  if (ours.empty()) return "not here";
  if (direction == 0) return "-";
  if (is_opposite()) return "opposite";
  const double beyond = (mean() - neutral) * direction;
  return beyond > deviation_of(ours) ? "same" : "no clear change";
}

report::Table claims_table(std::span<const Claim> claims) {
  report::Table table{"", {"published claim", "published", "here", "direction"}, {}};
  for (const Claim& claim : claims) {
    std::string ours = "-";
    const double deviation = deviation_of(claim.ours);
    if (!claim.ours.empty() && claim.unit != Claim::Unit::kTimes) {
      const bool is_share = claim.unit == Claim::Unit::kShare;
      ours = is_share ? fmt::format("{:.1f} %", 100 * claim.mean())
                      : fmt::format("{:+.1f} %", 100 * claim.mean());
      if (deviation > 0) ours += fmt::format(" ±{:.1f}", 100 * deviation);
    } else if (!claim.ours.empty()) {
      ours = fmt::format("{:.2f} x", claim.mean());
      if (deviation > 0) ours += fmt::format(" ±{:.2f}", deviation);
    }
    table.rows.push_back({claim.what, claim.published, ours, claim.verdict()});
  }
  return table;
}

Json json_of(std::span<const Claim> claims) {
  Json list = Json::array();
  for (const Claim& claim : claims)
    list.push_back({{"what", claim.what},
                    {"published", claim.published},
                    {"here", claim.ours.empty() ? Json(nullptr) : Json(claim.mean())},
                    {"spread", deviation_of(claim.ours)},
                    {"direction", claim.verdict()}});
  return list;
}

ReproducedTable reproduced(std::string name, const std::string& subject, report::Table table,
                           std::span<const Row> rows, std::span<const Claim> claims,
                           std::vector<std::string> notes) {
  ReproducedTable out;
  out.json = {{"name", name},
              {"trace", subject},
              {"rows", json_of(rows)},
              {"claims", json_of(claims)},
              {"notes", notes}};
  out.name = std::move(name);
  out.blocks.push_back({std::move(table), {}});
  out.blocks.push_back({claims_table(claims), std::move(notes)});
  return out;
}

}  // namespace grace::app
