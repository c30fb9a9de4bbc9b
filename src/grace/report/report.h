// Plain tables, charts and matrices -> terminal tables and one self-contained HTML page. Pure functions;
// knows no other room.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace grace::report {

struct Table {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // each as long as columns
  // Heeded by pages alone.
  std::string note = {};
  bool sortable = false;  // a click on a column's head sorts by it; the cells of a column are of one kind
  int closing_rows = 0;   // the last rows, sums and means, which stay below when the others are sorted
  int chosen_row = -1;    // set apart; negative: none
};

// Aligned for a terminal: first column left, the others right; column widths by code points.
std::string terminal_table(const Table& table);
std::string markdown_table(const Table& table);

// Names with what belongs to them.
struct Facts {
  std::string title;
  std::vector<std::pair<std::string, std::string>> facts;
};

struct Series {
  std::string name;
  std::vector<double> values;
  std::vector<double> spread = {};  // either side of each value; empty: none
};
// Bars that lie: one group per label, one bar per series.
struct BarChart {
  std::string title, note;
  std::vector<std::string> labels;
  std::vector<Series> series;
  int chosen = -1;  // the label that is set apart; negative: none
};

// Points, by series joined or not, each with a name that stands beside it where there is room.
struct Point {
  double x = 0, y = 0;
  double spread = 0;  // of y, either side
  std::string name = {};
  bool chosen = false;
};
struct PointSeries {
  std::string name;
  std::vector<Point> points;
  bool joined = true;  // by a line, in the order given
};
struct PointChart {
  std::string title, note, x_name, y_name;
  std::vector<PointSeries> series;
};

// Matrices by colour. Several panels stand side by side under one scale (before, after); several layers are
// chosen by the slider that the whole page shares.
enum class Scale {
  kSequential,  // from zero
  kRoot,        // from zero, by the square root: for counts of which most are small
  kDiverging,   // from HeatMap::middle to either side
  kCategories,  // values are indices into HeatMap::categories
};
// A line before row or column `before`; strong ones stand between nodes, the others between devices.
struct Border {
  int before = 0;
  bool strong = false;
};
struct HeatPanel {
  std::vector<double> values;   // [rows, cols] row-major; empty: those of the panel before
  std::vector<int> order = {};  // which row, and column, of values stands at each place; empty: as they come
  std::vector<Border> row_borders = {}, col_borders = {};
};
struct HeatLayer {
  int layer = -1;  // index into Page::layers; negative: shown for every layer
  std::vector<HeatPanel> panels;
};
struct HeatMap {
  std::string title, note, row_name, col_name, value_name;
  int rows = 0, cols = 0;
  std::vector<HeatLayer> layers;                              // each with as many panels
  std::vector<std::string> panels = {};                       // their names; empty: one without
  std::vector<std::string> row_labels = {}, col_labels = {};  // empty: 0, 1, ..
  Scale scale = Scale::kSequential;
  double middle = 0;
  std::vector<std::string> categories = {};
  std::string unit = {};         // behind each value
  bool symmetric = false;        // rows are columns, and values[i][j] = values[j][i]
  bool summable = false;         // the layers' sum can be shown in place of one
  bool rows_are_layers = false;  // row i is Page::layers[i]: marked, and chosen by a click
};

// Bars over time, a lane per rank.
struct TimelineSpan {
  int lane = 0;
  double begin_s = 0, end_s = 0;
  std::string name;
};
struct Timeline {
  std::string title, note;
  std::vector<std::string> lanes;
  std::vector<TimelineSpan> spans;
};

using Picture = std::variant<Table, Facts, BarChart, PointChart, HeatMap, Timeline>;

struct Section {
  std::string title, note;
  std::vector<Picture> pictures;
};
struct KeyFigure {
  std::string value, name;
};
struct Page {
  std::string title;
  std::string summary = {};  // what it is about; its lines are kept
  std::string verdict = {};  // the answer in a sentence; empty: none
  std::vector<KeyFigure> key_figures = {};
  std::vector<std::string> layers = {};  // names on the slider
  std::vector<Section> sections = {};
};
// No network, light and dark, readable on a phone, usable by keyboard; text is escaped. The same page gives
// the same bytes. A heat map of many values keeps each within 1 % of the largest. REQUIRES: rows, panels and
// values are as many as their picture says.
std::string html(const Page& page);

// Spans for a trace viewer, on tracks that processes hold; spans of a track are apart or one inside another.
struct TraceTrack {
  std::string process, name;
};
struct TraceSpan {
  int track = 0;
  double begin_s = 0, end_s = 0;
  std::string name;
  std::vector<std::pair<std::string, std::int64_t>> numbers;  // shown when the span is chosen
};
struct TraceEvents {
  std::vector<TraceTrack> tracks;
  std::vector<TraceSpan> spans;
};

// Chrome trace-event JSON, which Perfetto opens.
std::string chrome_trace(const TraceEvents& events);
// The timeline's lanes as tracks of one process.
std::string chrome_trace(const Timeline& timeline);

}  // namespace grace::report
