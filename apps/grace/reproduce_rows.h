// Figures by row, one value a split -> a table, JSON, and the published claims beside what was measured.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "grace/cost/evaluate.h"
#include "grace/files/json_file.h"
#include "grace/report/report.h"
#include "output.h"

namespace grace::app {

struct Row {
  std::string name;
  std::map<std::string, std::vector<double>> values;  // by figure, [splits]

  void add(const std::string& figure, double value) { values[figure].push_back(value); }
  // The evaluator's figures; seconds and bytes (a layer's batch, there and back) need known sizes. `prefix`
  // keeps two batch sizes apart.
  void add(const Figures& figures, const LayerSizes& sizes, const std::string& prefix = "");
  double mean(const std::string& figure) const;  // 0 where it is absent
};
double mean_of(std::span<const double> values);       // 0 of none
double deviation_of(std::span<const double> values);  // of a sample; 0 for fewer than two

struct Column {
  const char* figure;
  const char* title;
  double scale = 1;
  int digits = 2;
  bool spread = true;
};
// A figure that a row lacks is a dash.
report::Table table_of(std::string title, std::string row_name, std::span<const Row> rows,
                       std::span<const Column> columns);
Json json_of(std::span<const Row> rows);

// `row` over `base` less one, split by split; empty where either lacks the figure or the base is zero.
std::vector<double> change_of(const Row& row, const Row& base, const std::string& figure);

// What was published, and the same measured here.
struct Claim {
  enum class Unit { kPercent, kShare, kTimes };
  std::string what;
  std::string published;     // as it was printed
  int direction = 0;         // of the published figure from `neutral`; 0: none is claimed
  std::vector<double> ours;  // [splits]
  Unit unit = Unit::kPercent;
  double neutral = 0;  // no change: 0 for a change, 1 for a ratio

  double mean() const { return mean_of(ours); }
  // Clearly on the other side of neutral than published: by more than its deviation over the splits and by
  // more than 1 %.
  bool is_opposite() const;
  std::string verdict() const;
};
report::Table claims_table(std::span<const Claim> claims);
Json json_of(std::span<const Claim> claims);

struct ReproducedTable {
  std::string name;
  std::vector<Block> blocks;
  Json json;  // name, trace, rows, claims, notes
};
// The rows and, under them, the claims and what is to be said of them.
ReproducedTable reproduced(std::string name, const std::string& subject, report::Table table,
                           std::span<const Row> rows, std::span<const Claim> claims,
                           std::vector<std::string> notes);

}  // namespace grace::app
