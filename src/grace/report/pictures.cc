#include "grace/report/pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "grace/base/check.h"
#include "grace/report/text.h"

namespace grace::report {
namespace {

constexpr int kNumColours = 8;  // classes c0..c7 of the style sheet
constexpr double kWidth = 720, kLeft = 64, kRight = 8;

std::string caption(const std::string& title, const std::string& note) {
  std::string out = fmt::format("<h2>{}</h2>\n", escape_html(title));
  if (!note.empty()) out += fmt::format("<p class=note>{}</p>\n", escape_html(note));
  return out;
}

std::string legend(const std::vector<std::string>& names) {
  std::string out = "<p class=legend>";
  for (std::size_t i = 0; i < names.size(); ++i)
    out += fmt::format("<span><i class=b{}></i>{}</span> ", i % kNumColours, escape_html(names[i]));
  return out + "</p>\n";
}

// 1, 2 or 5 times a power of ten, so that `highest` takes three to seven steps.
double tick_step(double highest) {
  if (!(highest > 0)) return 1;
  const double power = std::pow(10, std::floor(std::log10(highest / 4)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (highest / (factor * power) <= 7) return factor * power;
  return 10 * power;
}

double highest_of(const std::vector<Series>& series) {
  double highest = 0;
  for (const Series& one : series)
    for (const double value : one.values)
      if (std::isfinite(value)) highest = std::max(highest, value);
  return highest;
}

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format("<text x={:.1f} y={:.1f} text-anchor={}>{}</text>\n", x, y, anchor, escape_html(text));
}

std::string svg_of(double height, const std::string& title, const std::string& inside) {
  return fmt::format("<div class=wide><svg viewBox=\"0 0 {} {}\" role=img aria-label=\"{}\">\n", kWidth,
                     height, escape_html(title)) +
         inside + "</svg></div>\n";
}

}  // namespace

std::string table_html(const Table& table) {
  std::string out = caption(table.title, "") + "<div class=wide><table>\n<tr>";
  for (const std::string& column : table.columns) out += fmt::format("<th>{}</th>", escape_html(column));
  out += "</tr>\n";
  for (const auto& row : table.rows) {
    GRACE_CHECK(row.size() == table.columns.size(), "a row of the table is not as long as its columns");
    out += "<tr>";
    for (const std::string& cell : row) out += fmt::format("<td>{}</td>", escape_html(cell));
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

std::string bars_svg(const BarChart& chart) {
  constexpr double kHeight = 240, kTop = 10, kBottom = 24;
  const double highest = highest_of(chart.series), step = tick_step(highest);
  const double scale = (kHeight - kTop - kBottom) / (highest > 0 ? highest : 1);
  const auto y_of = [&](double value) { return kHeight - kBottom - value * scale; };
  std::string inside;
  for (int i = 0; i * step <= highest * 1.0001; ++i) {
    inside += fmt::format("<path class=grid d=\"M{} {:.1f}H{}\"/>", kLeft, y_of(i * step), kWidth - kRight);
    inside += text_at(kLeft - 6, y_of(i * step) + 4, "end", short_number(i * step));
  }
  const std::size_t groups = chart.labels.size(), bars = std::max<std::size_t>(chart.series.size(), 1);
  const double group_width =
      (kWidth - kLeft - kRight) / static_cast<double>(std::max<std::size_t>(groups, 1));
  const double bar_width = group_width * 0.8 / static_cast<double>(bars);
  const std::size_t label_every = groups / 24 + 1;
  for (std::size_t g = 0; g < groups; ++g) {
    const double left = kLeft + group_width * (static_cast<double>(g) + 0.1);
    for (std::size_t s = 0; s < chart.series.size(); ++s) {
      const double value = g < chart.series[s].values.size() ? chart.series[s].values[g] : 0;
      if (!std::isfinite(value) || value <= 0) continue;
      inside += fmt::format(
          "<rect class=c{} x={:.2f} y={:.2f} width={:.2f} height={:.2f}><title>{}, {}: {}</title></rect>\n",
          s % kNumColours, left + bar_width * static_cast<double>(s), y_of(value), bar_width * 0.92,
          value * scale, escape_html(chart.labels[g]), escape_html(chart.series[s].name),
          short_number(value));
    }
    if (g % label_every == 0)
      inside += text_at(left + group_width * 0.4, kHeight - 6, "middle", chart.labels[g]);
  }
  std::vector<std::string> names;
  for (const Series& one : chart.series) names.push_back(one.name);
  return caption(chart.title, chart.note) + legend(names) + svg_of(kHeight, chart.title, inside);
}

std::string timeline_svg(const Timeline& timeline) {
  constexpr double kLane = 26, kAxis = 22;
  std::vector<std::string> names;  // in order of appearance; the index chooses the colour
  double end = 0;
  for (const TimelineSpan& span : timeline.spans) {
    if (std::ranges::find(names, span.name) == names.end()) names.push_back(span.name);
    end = std::max(end, span.end_s);
  }
  const double height = kLane * static_cast<double>(timeline.lanes.size()) + kAxis;
  const double scale = (kWidth - kLeft - kRight) / (end > 0 ? end : 1), step = tick_step(end * 1e3) / 1e3;
  std::string inside;
  for (int i = 0; i * step <= end * 1.0001; ++i) {
    const double x = kLeft + i * step * scale;
    inside += fmt::format("<path class=grid d=\"M{:.1f} 0V{:.1f}\"/>", x, height - kAxis);
    inside += text_at(x, height - 6, i == 0 ? "start" : "middle", short_number(i * step * 1e3) + " ms");
  }
  for (std::size_t lane = 0; lane < timeline.lanes.size(); ++lane)
    inside += text_at(kLeft - 6, kLane * (static_cast<double>(lane) + 0.65), "end", timeline.lanes[lane]);
  for (const TimelineSpan& span : timeline.spans) {
    const auto colour = std::ranges::find(names, span.name) - names.begin();
    inside += fmt::format(
        "<rect class=c{} x={:.2f} y={:.1f} width={:.2f} height={:.1f}><title>{}, {}: {} ms</title></rect>\n",
        colour % kNumColours, kLeft + span.begin_s * scale, kLane * span.lane + 3,
        (span.end_s - span.begin_s) * scale, kLane - 6,
        span.lane >= 0 && static_cast<std::size_t>(span.lane) < timeline.lanes.size()
            ? escape_html(timeline.lanes[static_cast<std::size_t>(span.lane)])
            : std::to_string(span.lane),
        escape_html(span.name), short_number((span.end_s - span.begin_s) * 1e3));
  }
  return caption(timeline.title, timeline.note) + legend(names) + svg_of(height, timeline.title, inside);
}

namespace {

std::string json_list(const std::vector<std::string>& items) {
  std::string out = "[";
  for (std::size_t i = 0; i < items.size(); ++i) out.append(i > 0 ? "," : "").append(json_string(items[i]));
  return out + "]";
}

std::string heat_map_json(const HeatMap& map) {
  GRACE_CHECK(map.values.size() == static_cast<std::size_t>(map.rows) * static_cast<std::size_t>(map.cols),
              "a heat map has rows * cols values");
  std::string out = fmt::format(
      "{{\"title\":{},\"note\":{},\"row\":{},\"col\":{},\"rows\":{},\"cols\":{},\"rl\":{},\"cl\":{},\"v\":[",
      json_string(map.title), json_string(map.note), json_string(map.row_name), json_string(map.col_name),
      map.rows, map.cols, json_list(map.row_labels), json_list(map.col_labels));
  for (std::size_t i = 0; i < map.values.size(); ++i)
    out.append(i > 0 ? "," : "").append(json_number(map.values[i]));
  return out + "]}";
}

}  // namespace

std::string heat_map_html(const LayeredHeatMap& map) {
  if (map.layers.empty()) return "";
  std::string out = caption(map.title, map.note) + "<figure class=heat>\n";
  if (map.layers.size() > 1)
    out += fmt::format(
        "<label class=slider><input type=range min=0 max={} value=0 step=1> <output></output></label>\n",
        map.layers.size() - 1);
  out +=
      "<canvas role=img aria-label=\"" + escape_html(map.title) + "\"></canvas>\n<figcaption></figcaption>\n";
  out += "<script type=\"application/json\">[";
  for (std::size_t i = 0; i < map.layers.size(); ++i)
    out.append(i > 0 ? ",\n" : "").append(heat_map_json(map.layers[i]));
  return out + "]</script>\n</figure>\n";
}

}  // namespace grace::report
