#include <fmt/format.h>

#include "grace/report/fragments.h"
#include "grace/report/report.h"
#include "grace/report/text.h"

namespace grace::report {
namespace {

// Fragments of a page, and the data of those that the script draws: text comes first, data last.
struct Body {
  std::string text, data;
  int drawn = 0;

  void draw(std::string_view kind, const std::string& title, const std::string& note,
            const std::string& json) {
    text += "<div class=picture>" + heading_html(title, note);
    text += fmt::format("<div class=drawn data-kind={} data-from=d{}></div></div>\n", kind, drawn);
    data += fmt::format("<script type=\"application/json\" id=d{}>{}</script>\n", drawn++, json);
  }
  void box(const std::string& fragment) { text += "<div class=picture>" + fragment + "</div>\n"; }

  void operator()(const Table& table) { box(table_html(table)); }
  void operator()(const Facts& facts) { box(facts_html(facts)); }
  void operator()(const BarChart& chart) { box(bars_html(chart)); }
  void operator()(const Timeline& timeline) { box(timeline_html(timeline)); }
  void operator()(const PointChart& chart) { draw("points", chart.title, chart.note, points_json(chart)); }
  void operator()(const HeatMap& map) {
    if (!map.layers.empty()) draw("heat", map.title, map.note, heat_json(map));
  }
};

bool follows_layers(const Page& page) {
  for (const Section& section : page.sections)
    for (const Picture& picture : section.pictures)
      if (const auto* map = std::get_if<HeatMap>(&picture))
        if (map->rows_are_layers || map->layers.size() > 1) return page.layers.size() > 1;
  return false;
}

std::string contents_of(const Page& page) {
  std::string items;
  for (std::size_t i = 0; i < page.sections.size(); ++i)
    if (!page.sections[i].title.empty())
      items += fmt::format("<li><a href=\"#s{}\">{}</a></li>", i, escape_html(page.sections[i].title));
  return page.sections.size() < 2 ? "" : "<nav aria-label=\"On this page\"><ul>" + items + "</ul></nav>\n";
}

std::string slider_of(const Page& page) {
  std::string names;
  for (const std::string& name : page.layers) names += fmt::format("<option>{}</option>", escape_html(name));
  return fmt::format(
      "<form id=layers aria-label=\"Layer of all pictures\"><button type=button data-by=-1 "
      "aria-label=\"Layer before\">&#8249;</button><label for=layer>Layer</label>"
      "<input id=layer type=range min=0 max={} value=0 step=1><output for=layer></output>"
      "<button type=button data-by=1 aria-label=\"Next layer\">&#8250;</button>"
      "<datalist id=layer-names>{}</datalist></form>\n",
      page.layers.size() - 1, names);
}

std::string head_of(const Page& page) {
  std::string out = fmt::format("<header><h1>{}</h1>\n", escape_html(page.title));
  if (!page.summary.empty()) out += fmt::format("<p class=summary>{}</p>\n", escape_html(page.summary));
  if (!page.verdict.empty()) out += fmt::format("<p class=verdict>{}</p>\n", escape_html(page.verdict));
  if (!page.key_figures.empty()) {
    out += "<dl class=key>";
    for (const auto& [value, name] : page.key_figures)
      out += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", escape_html(name), escape_html(value));
    out += "</dl>\n";
  }
  return out + "</header>\n";
}

}  // namespace

std::string html(const Page& page) {
  Body body;
  for (std::size_t i = 0; i < page.sections.size(); ++i) {
    const Section& section = page.sections[i];
    body.text += fmt::format("<section id=s{}>\n", i);
    if (!section.title.empty()) body.text += fmt::format("<h2>{}</h2>\n", escape_html(section.title));
    if (!section.note.empty()) body.text += fmt::format("<p class=note>{}</p>\n", escape_html(section.note));
    for (const Picture& picture : section.pictures) std::visit(body, picture);
    body.text += "</section>\n";
  }
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n"
      "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; script-src 'unsafe-inline'; "
      "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n"
      "<meta name=viewport content=\"width=device-width,initial-scale=1\">\n"
      "<meta name=color-scheme content=\"light "
      "dark\">\n<title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n"
      "<button id=theme type=button hidden>Dark</button>\n",
      escape_html(page.title), kStyle);
  out += "<div class=frame>\n" + contents_of(page) + "<main>\n" + head_of(page);
  out +=
      "<noscript><p class=note>Tables and bars stand below; the other pictures are drawn by the page's own "
      "script, which is off.</p></noscript>\n";
  out += body.text + "</main>\n</div>\n";
  if (follows_layers(page)) out += slider_of(page);
  return out + body.data + fmt::format("<script>\n{}</script>\n</body>\n</html>\n", kScript);
}

}  // namespace grace::report
