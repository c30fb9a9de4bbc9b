#include "grace/report/fragments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "grace/base/check.h"
#include "grace/report/text.h"

namespace grace::report {
namespace {

constexpr std::size_t kNumColours = 8;  // classes c0..c7 of the style sheet

std::string legend(const std::vector<std::string>& names) {
  std::string out = "<p class=legend>";
  for (std::size_t i = 0; i < names.size(); ++i)
    out += fmt::format("<span><i class=c{}></i>{}</span> ", i % kNumColours, escape_html(names[i]));
  return out + "</p>\n";
}

std::string row_html(const Table& table, std::size_t r) {
  const auto& cells = table.rows[r];
  GRACE_CHECK(cells.size() == table.columns.size(), "a row of the table is not as long as its columns");
  std::string out = std::cmp_equal(r, table.chosen_row) ? "<tr class=chosen>" : "<tr>";
  for (std::size_t c = 0; c < cells.size(); ++c)
    out += c == 0 ? fmt::format("<th scope=row>{}</th>", escape_html(cells[c]))
                  : fmt::format("<td>{}</td>", escape_html(cells[c]));
  return out + "</tr>\n";
}

// Where a chart begins and ends: zero is always inside.
struct Extent {
  double low = 0, high = 0;

  void hold(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  double percent(double value) const { return high > low ? 100 * (value - low) / (high - low) : 0; }
};

Extent extent_of(const BarChart& chart) {
  Extent extent;
  for (const Series& series : chart.series)
    for (std::size_t i = 0; i < series.values.size(); ++i) {
      extent.hold(series.values[i]);
      if (i < series.spread.size()) extent.hold(series.values[i] + series.spread[i]);
    }
  return extent;
}

// To one digit more than the value is said to; nothing where that leaves nothing.
std::string spread_text(double value, double spread) {
  if (!(spread > 0) || value == 0 || !std::isfinite(value)) return "";
  const int decimals = std::clamp(3 - static_cast<int>(std::floor(std::log10(std::abs(value)))) - 1, 0, 9);
  const std::string text = fmt::format("{:.{}f}", spread, decimals + 1);
  return text.find_first_not_of("0.") == std::string::npos ? "" : " \u00b1" + text;
}

std::string bar_html(const Series& series, std::size_t g, std::size_t colour, const Extent& extent,
                     const std::string& label) {
  const double value = g < series.values.size() ? series.values[g] : std::nan("");
  const double spread = g < series.spread.size() ? series.spread[g] : 0;
  const std::string text = short_number(value) + spread_text(value, spread);
  std::string bar;
  if (std::isfinite(value)) {
    const double from = extent.percent(std::min(value, 0.0)), to = extent.percent(std::max(value, 0.0));
    bar = fmt::format("<i class=c{} style=\"left:{:.2f}%;width:{:.2f}%\"></i>", colour % kNumColours, from,
                      to - from);
    if (spread > 0)
      bar += fmt::format("<b style=\"left:{:.2f}%;width:{:.2f}%\"></b>", extent.percent(value - spread),
                         extent.percent(value + spread) - extent.percent(value - spread));
  }
  const std::string tip = label + (series.name.empty() ? "" : ", " + series.name) + ": " + text;
  return fmt::format("<div class=bar data-tip=\"{}\"><span>{}</span><em>{}</em></div>", escape_html(tip), bar,
                     escape_html(text));
}

}  // namespace

std::string heading_html(std::string_view title, std::string_view note) {
  std::string out;
  if (!title.empty()) out += fmt::format("<h3>{}</h3>\n", escape_html(title));
  if (!note.empty()) out += fmt::format("<p class=note>{}</p>\n", escape_html(note));
  return out;
}

std::string table_html(const Table& table) {
  std::string out = heading_html(table.title, table.note);
  out += fmt::format("<div class=wide><table{}>\n<thead><tr>", table.sortable ? " class=sortable" : "");
  for (const std::string& column : table.columns)
    out += table.sortable
               ? fmt::format("<th scope=col><button type=button>{}</button></th>", escape_html(column))
               : fmt::format("<th scope=col>{}</th>", escape_html(column));
  out += "</tr></thead>\n<tbody>\n";
  const std::size_t closing = static_cast<std::size_t>(std::max(table.closing_rows, 0));
  const std::size_t sorted = table.rows.size() - std::min(closing, table.rows.size());
  for (std::size_t r = 0; r < sorted; ++r) out += row_html(table, r);
  out += "</tbody>\n";
  if (sorted < table.rows.size()) {
    out += "<tfoot>\n";
    for (std::size_t r = sorted; r < table.rows.size(); ++r) out += row_html(table, r);
    out += "</tfoot>\n";
  }
  return out + "</table></div>\n";
}

std::string facts_html(const Facts& facts) {
  std::string out = heading_html(facts.title, "") + "<dl class=facts>\n";
  for (const auto& [name, value] : facts.facts)
    out += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", escape_html(name), escape_html(value));
  return out + "</dl>\n";
}

std::string bars_html(const BarChart& chart) {
  const Extent extent = extent_of(chart);
  std::string out = heading_html(chart.title, chart.note);
  std::vector<std::string> names;
  for (const Series& series : chart.series) names.push_back(series.name);
  if (names.size() > 1) out += legend(names);
  out += "<div class=bars data-steps=\".bar\">\n";
  for (std::size_t g = 0; g < chart.labels.size(); ++g) {
    out += fmt::format("<div class=\"group{}\"><span class=label>{}</span><div>",
                       std::cmp_equal(g, chart.chosen) ? " chosen" : "", escape_html(chart.labels[g]));
    for (std::size_t s = 0; s < chart.series.size(); ++s)
      out += bar_html(chart.series[s], g, s, extent, chart.labels[g]);
    out += "</div></div>\n";
  }
  return out + "</div>\n";
}

std::string timeline_html(const Timeline& timeline) {
  std::vector<std::string> names;  // in order of appearance; the index chooses the colour
  Extent extent;
  for (const TimelineSpan& span : timeline.spans) {
    if (std::ranges::find(names, span.name) == names.end()) names.push_back(span.name);
    extent.hold(span.end_s);
  }
  std::vector<std::string> lanes(timeline.lanes.size());
  for (const TimelineSpan& span : timeline.spans) {
    GRACE_CHECK(span.lane >= 0 && std::cmp_less(span.lane, lanes.size()), "a span lies in a lane");
    const auto lane = static_cast<std::size_t>(span.lane);
    const auto colour = static_cast<std::size_t>(std::ranges::find(names, span.name) - names.begin());
    lanes[lane] += fmt::format(
        "<i class=c{} style=\"left:{:.3f}%;width:{:.3f}%\" data-tip=\"{}, {}: {} ms\"></i>",
        colour % kNumColours, extent.percent(span.begin_s),
        extent.percent(span.end_s) - extent.percent(span.begin_s), escape_html(timeline.lanes[lane]),
        escape_html(span.name), short_number((span.end_s - span.begin_s) * 1e3));
  }
  std::string out = heading_html(timeline.title, timeline.note) + legend(names);
  out += "<div class=timeline data-steps=\"i\">\n";
  for (std::size_t lane = 0; lane < lanes.size(); ++lane)
    out += fmt::format("<div class=lane><span class=label>{}</span><div>{}</div></div>\n",
                       escape_html(timeline.lanes[lane]), lanes[lane]);
  return out + fmt::format(
                   "<div class=lane><span class=label></span><p><span>0</span><span>{} ms</span></p></div>"
                   "</div>\n",
                   short_number(extent.high * 1e3));
}

}  // namespace grace::report
