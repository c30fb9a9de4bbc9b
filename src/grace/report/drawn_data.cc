// What the page's script draws from: numbers as they are where they are few, else a byte each.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "grace/base/check.h"
#include "grace/report/fragments.h"
#include "grace/report/text.h"

namespace grace::report {
namespace {

// Up to so many values of a heat map stand in the page as numbers: some 300 KB.
constexpr std::size_t kExactValues = 60'000;
// Of a byte: what is not there, and the step of the largest value.
constexpr unsigned kNoValue = 255, kLargest = 254;

std::string list_of(const std::vector<std::string>& items) {
  std::string out = "[";
  for (std::size_t i = 0; i < items.size(); ++i) out.append(i > 0 ? "," : "").append(json_string(items[i]));
  return out + "]";
}

std::string numbers_of(std::span<const double> values) {
  std::string out = "[";
  for (std::size_t i = 0; i < values.size(); ++i) out.append(i > 0 ? "," : "").append(json_number(values[i]));
  return out + "]";
}

std::string base64(std::span<const std::uint8_t> bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t left = std::min<std::size_t>(bytes.size() - i, 3);
    std::uint32_t word = 0;
    for (std::size_t b = 0; b < left; ++b) word |= std::uint32_t{bytes[i + b]} << (16 - 8 * b);
    for (std::size_t digit = 0; digit < 4; ++digit)
      out += digit <= left ? kDigits[(word >> (18 - 6 * digit)) & 63U] : '=';
  }
  return out;
}

// The upper half, diagonal included, of what is symmetric; else all of it.
std::vector<double> stored_values(const HeatMap& map, const std::vector<double>& values) {
  if (!map.symmetric) return values;
  const auto rows = static_cast<std::size_t>(map.rows);
  std::vector<double> half;
  half.reserve(rows * (rows + 1) / 2);
  for (std::size_t i = 0; i < rows; ++i)
    half.insert(half.end(), values.begin() + static_cast<std::ptrdiff_t>(i * rows + i),
                values.begin() + static_cast<std::ptrdiff_t>((i + 1) * rows));
  return half;
}

// By the square root, so that small counts keep their places: within half a step of 254, which is 0.8 % of
// the largest value where it is coarsest.
std::string bytes_of(std::span<const double> values) {
  double largest = 0;
  bool whole = true;
  for (const double value : values)
    if (std::isfinite(value)) {
      largest = std::max(largest, value);
      whole = whole && value == std::floor(value);
    }
  std::vector<std::uint8_t> bytes;
  bytes.reserve(values.size());
  for (const double value : values) {
    const double step = largest > 0 ? std::round(kLargest * std::sqrt(value / largest)) : 0;
    bytes.push_back(static_cast<std::uint8_t>(std::isfinite(value) ? step : kNoValue));
  }
  return fmt::format("\"b\":\"{}\",\"m\":{},\"w\":{}", base64(bytes), json_number(largest), whole);
}

bool goes_as_bytes(const HeatMap& map) {
  std::size_t count = 0;
  bool negative = false;
  for (const HeatLayer& layer : map.layers)
    for (const HeatPanel& panel : layer.panels) {
      count += panel.values.size() / (map.symmetric ? 2 : 1);
      negative = negative || std::ranges::any_of(panel.values, [](double value) { return value < 0; });
    }
  return count > kExactValues && !negative;
}

// Strong borders are negative numbers.
std::string borders_of(const std::vector<Border>& borders) {
  std::string out = "[";
  for (std::size_t i = 0; i < borders.size(); ++i)
    out += fmt::format("{}{}", i > 0 ? "," : "", borders[i].strong ? -borders[i].before : borders[i].before);
  return out + "]";
}

std::string panel_json(const HeatMap& map, const HeatPanel& panel, bool as_bytes) {
  std::string out = "{";
  if (!panel.values.empty()) {
    GRACE_CHECK(
        panel.values.size() == static_cast<std::size_t>(map.rows) * static_cast<std::size_t>(map.cols),
        "a heat map has rows * cols values");
    const std::vector<double> values = stored_values(map, panel.values);
    out += as_bytes ? bytes_of(values) : "\"v\":" + numbers_of(values);
    out += ',';
  }
  return out + fmt::format("\"o\":[{}],\"rb\":{},\"cb\":{}}}", fmt::join(panel.order, ","),
                           borders_of(panel.row_borders), borders_of(panel.col_borders));
}

std::string_view name_of(Scale scale) {
  if (scale == Scale::kCategories) return "categories";
  if (scale == Scale::kRoot) return "root";
  return scale == Scale::kDiverging ? "diverging" : "sequential";
}

}  // namespace

std::string points_json(const PointChart& chart) {
  std::string out = fmt::format("{{\"title\":{},\"x\":{},\"y\":{},\"series\":[", json_string(chart.title),
                                json_string(chart.x_name), json_string(chart.y_name));
  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    const PointSeries& series = chart.series[s];
    out += fmt::format("{}{{\"name\":{},\"joined\":{},\"points\":[", s > 0 ? "," : "",
                       json_string(series.name), series.joined);
    for (std::size_t p = 0; p < series.points.size(); ++p) {
      const Point& point = series.points[p];
      out += fmt::format("{}[{},{},{},{},{}]", p > 0 ? "," : "", json_number(point.x), json_number(point.y),
                         json_number(point.spread), json_string(point.name), point.chosen ? 1 : 0);
    }
    out += "]}";
  }
  return out + "]}";
}

std::string heat_json(const HeatMap& map) {
  const bool as_bytes = goes_as_bytes(map);
  std::string out = fmt::format(
      "{{\"title\":{},\"row\":{},\"col\":{},\"value\":{},\"unit\":{},\"rows\":{},\"cols\":{},\"rl\":{},"
      "\"cl\":{},"
      "\"panels\":{},\"scale\":\"{}\",\"middle\":{},\"categories\":{},\"symmetric\":{},\"summable\":{},"
      "\"rowsAreLayers\":{},\"layers\":[",
      json_string(map.title), json_string(map.row_name), json_string(map.col_name),
      json_string(map.value_name), json_string(map.unit), map.rows, map.cols, list_of(map.row_labels),
      list_of(map.col_labels), list_of(map.panels), name_of(map.scale), json_number(map.middle),
      list_of(map.categories), map.symmetric, map.summable, map.rows_are_layers);
  for (std::size_t l = 0; l < map.layers.size(); ++l) {
    const HeatLayer& layer = map.layers[l];
    GRACE_CHECK(layer.panels.size() == std::max<std::size_t>(map.panels.size(), 1),
                "a layer of a heat map has as many panels as the map");
    out += fmt::format("{}{{\"at\":{},\"panels\":[", l > 0 ? ",\n" : "", layer.layer);
    for (std::size_t p = 0; p < layer.panels.size(); ++p)
      out.append(p > 0 ? "," : "").append(panel_json(map, layer.panels[p], as_bytes));
    out += "]}";
  }
  return out + "]}";
}

}  // namespace grace::report
