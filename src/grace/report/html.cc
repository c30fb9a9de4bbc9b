#include <fmt/format.h>

#include "grace/report/pictures.h"
#include "grace/report/text.h"

namespace grace::report {

std::string html(const Page& page) {
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n"
      "<meta name=viewport content=\"width=device-width,initial-scale=1\">\n<title>{0}</title>\n"
      "<style>{1}</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
      escape_html(page.title), kStyle);
  if (!page.summary.empty()) out += fmt::format("<p class=summary>{}</p>\n", escape_html(page.summary));
  for (const Table& table : page.tables) out += table_html(table);
  for (const BarChart& chart : page.bars) out += bars_svg(chart);
  for (const LayeredHeatMap& map : page.heat_maps) out += heat_map_html(map);
  for (const Timeline& timeline : page.timelines) out += timeline_svg(timeline);
  return out + fmt::format("<script>{}</script>\n</body>\n</html>\n", kScript);
}

}  // namespace grace::report
