// The pictures of a page as fragments of HTML.
#pragma once

#include <string>

#include "grace/report/report.h"

namespace grace::report {

std::string table_html(const Table& table);
std::string bars_svg(const BarChart& chart);
std::string timeline_svg(const Timeline& timeline);
// A canvas and, with more than one layer, a slider; drawn by the page's script.
std::string heat_map_html(const LayeredHeatMap& map);

// What the page's pictures share, inline.
extern const char* const kStyle;
extern const char* const kScript;

}  // namespace grace::report
