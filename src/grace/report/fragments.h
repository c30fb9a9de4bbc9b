// The pictures of a page as fragments of HTML.
#pragma once

#include <string>
#include <string_view>

#include "grace/report/report.h"

namespace grace::report {

// What is text and boxes, and needs no script.
std::string table_html(const Table& table);
std::string facts_html(const Facts& facts);
std::string bars_html(const BarChart& chart);
std::string timeline_html(const Timeline& timeline);

// What the page's script draws, as the JSON that it draws from.
std::string points_json(const PointChart& chart);
std::string heat_json(const HeatMap& map);

// Heading of a picture and its note; nothing for what is empty.
std::string heading_html(std::string_view title, std::string_view note);

// The style sheet and the script of page/, joined by the build.
extern const char* const kStyle;
extern const char* const kScript;

}  // namespace grace::report
