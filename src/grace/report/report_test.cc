#include "grace/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "grace/report/fragments.h"
#include "grace/report/text.h"

namespace grace::report {
namespace {

using testing::HasSubstr;
using testing::Not;

Table small_table() {
  return {"Bytes", {"link", "vanilla", "grace"}, {{"in \u00fc", "1", "200"}, {"across", "30", "4"}}};
}

TEST(ATerminalTable, AlignsByCodePointsAndEndsNoLineInSpaces) {
  EXPECT_EQ(terminal_table(small_table()),
            "Bytes\nlink    vanilla  grace\n\u2500\u2500\u2500\u2500\u2500\u2500  "
            "\u2500\u2500\u2500\u2500\u2500\u2500\u2500  "
            "\u2500\u2500\u2500\u2500\u2500\nin \u00fc          1    200\nacross       30      4\n");
}

TEST(ATerminalTable, WithoutRowsIsItsHead) { EXPECT_EQ(terminal_table({"", {"a"}, {}}), "a\n\u2500\n"); }

TEST(AMarkdownTable, EscapesBarsAndRightAlignsNumbers) {
  EXPECT_EQ(markdown_table({"", {"a", "b"}, {{"x|y", "1"}}}), "| a | b |\n| --- | ---: |\n| x\\|y | 1 |\n");
}

TEST(Text, ThatIsNotUtf8IsReplaced) {
  EXPECT_EQ(valid_utf8("a\xff\xc0\x80z"), "a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz");
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(valid_utf8("\u65e5\U0001f600"), "\u65e5\U0001f600");
  EXPECT_EQ(valid_utf8("\xe6\x97"), "\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(Text, IsEscapedForHtmlAndJson) {
  EXPECT_EQ(escape_html("<a href=\"x\">&'"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
  EXPECT_EQ(json_string("</script>\"\\\n"), "\"\\u003c/script>\\\"\\\\\\u000a\"");
}

TEST(ANumber, ThatIsNotFiniteIsNullOrADash) {
  EXPECT_EQ(json_number(std::numeric_limits<double>::quiet_NaN()), "null");
  EXPECT_EQ(short_number(std::numeric_limits<double>::infinity()), "\u2013");
  EXPECT_EQ(short_number(1234567), "1\u2009234\u2009567");
  EXPECT_EQ(short_number(0.125), "0.125");
}

Timeline small_timeline() {
  return {"One layer", "", {"rank 0", "rank 1"}, {{0, 0, 0.002, "gate"}, {1, 0.001, 0.003, "experts"}}};
}

HeatMap small_map() {
  HeatMap map;
  map.title = "Loads", map.row_name = "expert", map.col_name = "expert";
  map.rows = map.cols = 2;
  map.layers = {{0, {{{0, 1, std::numeric_limits<double>::quiet_NaN(), 2}}}}, {1, {{{4, 3, 2, 1}}}}};
  return map;
}

Page full_page() {
  Page page;
  page.title = "T <1>";
  page.summary = "two & two";
  page.verdict = "Use <it>";
  page.key_figures = {{"12 %", "less"}};
  page.layers = {"3", "4"};
  Table table = small_table();
  table.sortable = true;
  table.closing_rows = 1;
  table.chosen_row = 0;
  const PointChart chart{
      "Knee", "", "S", "U", {{"curve", {{1, 2, 0.5, "r 0", false}, {2, 3, 0, "r 1", true}}}}};
  page.sections = {
      {"Tables", "", {table, Facts{"Made", {{"seed", "0"}}}}},
      {"Charts", "", {BarChart{"Loads", "by layer", {"0", "1"}, {{"dev 0", {1, 2}, {0, 0.5}}}, 1}, chart}},
      {"Maps", "", {small_map()}},
      {"Time", "", {small_timeline()}}};
  return page;
}

TEST(APage, HoldsEveryPictureAndReachesForNoNetwork) {
  const std::string page = html(full_page());
  EXPECT_THAT(page, HasSubstr("T &lt;1&gt;"));
  EXPECT_THAT(page, HasSubstr("two &amp; two"));
  EXPECT_THAT(page, HasSubstr("<p class=verdict>Use &lt;it&gt;</p>"));
  EXPECT_THAT(page, HasSubstr("<a href=\"#s2\">Maps</a>"));
  EXPECT_THAT(page, HasSubstr("<tr class=chosen><th scope=row>in \u00fc</th>"));
  EXPECT_THAT(page, HasSubstr("<tfoot>\n<tr><th scope=row>across</th>"));
  EXPECT_THAT(page, HasSubstr("<dt>seed</dt><dd>0</dd>"));
  EXPECT_THAT(page, HasSubstr("data-tip=\"1, dev 0: 2 \u00b10.500\""));
  EXPECT_THAT(page, HasSubstr("data-tip=\"rank 1, experts: 2 ms\""));
  EXPECT_THAT(page, HasSubstr("[2,3,0,\"r 1\",1]"));
  EXPECT_THAT(page, HasSubstr("\"v\":[0,1,null,2]"));
  EXPECT_THAT(page, HasSubstr("type=range min=0 max=1"));
  EXPECT_THAT(page, HasSubstr("light-dark("));
  EXPECT_THAT(page, HasSubstr("name=viewport"));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  for (const char* reach : {"http:", "https:", "//cdn", "@import", "url(", "fetch(", "eval("})
    EXPECT_THAT(page, Not(HasSubstr(reach)));
}

TEST(APage, PutsTextBeforeDataAndDataBeforeTheScript) {
  const std::string page = html(full_page());
  EXPECT_LT(page.find("</main>"), page.find("application/json"));
  EXPECT_LT(page.rfind("application/json"), page.rfind("<script>"));
}

TEST(APage, HasASliderOnlyWherePicturesFollowIt) {
  Page page = full_page();
  EXPECT_THAT(html(page), HasSubstr("<form id=layers"));
  std::get<HeatMap>(page.sections[2].pictures[0]).layers.resize(1);
  EXPECT_THAT(html(page), Not(HasSubstr("<form id=layers")));
}

TEST(APage, IsTheSameBytesTwice) { EXPECT_EQ(html(full_page()), html(full_page())); }

TEST(APage, WithNothingInItIsStillAPage) {
  Page page;
  page.sections = {{"", "", {Table{}, Facts{}, BarChart{}, PointChart{}, HeatMap{}, Timeline{}}}};
  EXPECT_THAT(html(page), HasSubstr("</html>"));
}

// Every place for text, with what would end a string, an attribute, an element or a script.
TEST(APage, LetsNoTextOutOfItsPlace) {
  const std::string bad = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&<!--\xff]]>";
  Page page = full_page();
  page.title = page.summary = page.verdict = page.layers[0] = bad;
  page.key_figures = {{bad, bad}};
  Table table{bad, {bad, bad}, {{bad, bad}}};
  table.note = bad;
  HeatMap map = small_map();
  map.title = map.note = map.row_name = map.col_name = map.value_name = map.unit = bad;
  map.row_labels = map.col_labels = map.panels = map.categories = {bad};
  page.sections = {{bad,
                    bad,
                    {table, Facts{bad, {{bad, bad}}}, BarChart{bad, bad, {bad}, {{bad, {1}}, {bad, {2}}}},
                     PointChart{bad, bad, bad, bad, {{bad, {{1, 1, 0, bad}}}}}, map,
                     Timeline{bad, bad, {bad}, {{0, 0, 1, bad}}}}}};
  const std::string text = html(page), plain = html(full_page());
  const auto count = [](const std::string& whole, std::string_view part) {
    std::size_t found = 0;
    for (std::size_t at = whole.find(part); at != std::string::npos; at = whole.find(part, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count(text, "<script"), count(plain, "<script"));
  EXPECT_EQ(count(text, "</script"), count(plain, "</script"));
  EXPECT_EQ(count(text, "<img"), 0U);
  EXPECT_EQ(count(text, "<!--"), 0U);
  EXPECT_EQ(count(text, "\xff"), 0U);
}

TEST(AHeatMap, OfManyValuesIsAByteEachAndHalfWhereItIsSymmetric) {
  constexpr int kSize = 400;
  HeatMap map;
  map.rows = map.cols = kSize;
  map.symmetric = true;
  std::vector<double> values;
  for (int i = 0; i < kSize * kSize; ++i) values.push_back(std::abs(i / kSize - i % kSize));
  map.layers = {{0, {{values}}}};
  const std::string json = heat_json(map);
  EXPECT_THAT(json, HasSubstr("\"m\":399,\"w\":true"));
  EXPECT_LT(json.size(), std::size_t{kSize} * (kSize + 1) / 2 * 4 / 3 + 1000);
  map.scale = Scale::kDiverging;
  map.layers[0].panels[0].values[1] = map.layers[0].panels[0].values[kSize] = -1;
  EXPECT_THAT(heat_json(map), HasSubstr("\"v\":[0,-1,2,")) << "what is negative stays as it is";
}

TEST(AChromeTrace, NamesItsLanesAndSpansInMicroseconds) {
  EXPECT_EQ(chrome_trace(small_timeline()),
            "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
            "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"One layer\"}},\n"
            "{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"thread_name\",\"args\":{\"name\":\"rank 0\"}},\n"
            "{\"ph\":\"M\",\"pid\":1,\"tid\":2,\"name\":\"thread_name\",\"args\":{\"name\":\"rank 1\"}},\n"
            "{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"name\":\"gate\",\"ts\":0.000,\"dur\":2000.000},\n"
            "{\"ph\":\"X\",\"pid\":1,\"tid\":2,\"name\":\"experts\",\"ts\":1000.000,\"dur\":2000.000}\n]}\n");
}

TEST(AChromeTrace, GivesTracksToTheirProcessesAndNumbersToSpans) {
  const TraceEvents events{{{"rank 0", "work"}, {"rank 1", "work"}, {"rank 1", "messages"}},
                           {{2, 0.5, 0.75, "dispatch", {{"layer", 3}, {"step", 1}}}}};
  const std::string text = chrome_trace(events);
  EXPECT_THAT(text,
              HasSubstr("\"pid\":2,\"tid\":3,\"name\":\"thread_name\",\"args\":{\"name\":\"messages\"}}"));
  EXPECT_THAT(text, HasSubstr("{\"ph\":\"X\",\"pid\":2,\"tid\":3,\"name\":\"dispatch\",\"ts\":500000.000,"
                              "\"dur\":250000.000,\"args\":{\"layer\":3,\"step\":1}}"));
}

TEST(AChromeTrace, OfNothingIsStillOne) {
  EXPECT_EQ(chrome_trace(TraceEvents{}), "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n]}\n");
}

}  // namespace
}  // namespace grace::report
