// Plain tables and series -> terminal tables and one self-contained HTML page. Pure functions; knows no other
// room.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace grace::report {

struct Table {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // each as long as columns
};

// Aligned for a terminal: first column left, the others right; column widths by code points.
std::string terminal_table(const Table& table);
std::string markdown_table(const Table& table);

struct Series {
  std::string name;
  std::vector<double> values;
};
// Bars: one group per label, one bar per series.
struct BarChart {
  std::string title, note;
  std::vector<std::string> labels;
  std::vector<Series> series;
};
// values: [rows, cols] row-major; colour by value.
struct HeatMap {
  std::string title, note, row_name, col_name;
  int rows = 0, cols = 0;
  std::vector<double> values;
  std::vector<std::string> row_labels, col_labels;  // empty: 0, 1, ..
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
// One figure per layer; a slider chooses the layer.
struct LayeredHeatMap {
  std::string title, note;
  std::vector<HeatMap> layers;
};

struct Page {
  std::string title, summary;
  std::vector<Table> tables;
  std::vector<BarChart> bars;
  std::vector<LayeredHeatMap> heat_maps;
  std::vector<Timeline> timelines;
};
// No network, light and dark, readable on a phone; text is escaped.
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
