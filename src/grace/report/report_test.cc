#include "grace/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

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

Page full_page() {
  Page page;
  page.title = "T <1>";
  page.summary = "two & two";
  page.tables = {small_table()};
  page.bars = {{"Loads", "by layer", {"0", "1"}, {{"dev 0", {1, 2}}, {"dev 1", {3, 0}}}}};
  HeatMap map{"layer 0", "", "expert", "expert", 2, 2, {0, 1, std::numeric_limits<double>::quiet_NaN(), 2},
              {},        {}};
  HeatMap other = map;
  other.title = "</script>";
  page.heat_maps = {{"Affinity", "", {map, other}}};
  page.timelines = {
      {"One layer", "", {"rank 0", "rank 1"}, {{0, 0, 0.002, "gate"}, {1, 0.001, 0.003, "experts"}}}};
  return page;
}

TEST(APage, HoldsEveryPictureAndReachesForNoNetwork) {
  const std::string page = html(full_page());
  EXPECT_THAT(page, HasSubstr("T &lt;1&gt;"));
  EXPECT_THAT(page, HasSubstr("two &amp; two"));
  EXPECT_THAT(page, HasSubstr("<title>1, dev 0: 2</title>"));
  EXPECT_THAT(page, HasSubstr("\"v\":[0,1,null,2]"));
  EXPECT_THAT(page, HasSubstr("type=range min=0 max=1"));
  EXPECT_THAT(page, HasSubstr("<title>rank 1, experts: 2 ms</title>"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme:dark"));
  EXPECT_THAT(page, HasSubstr("name=viewport"));
  EXPECT_THAT(page, Not(HasSubstr("http")));
  EXPECT_THAT(page, Not(HasSubstr("\"title\":\"</script>")));
}

TEST(APage, IsTheSameBytesTwice) { EXPECT_EQ(html(full_page()), html(full_page())); }

TEST(APage, WithNothingInItIsStillAPage) {
  Page page;
  page.bars.push_back({});
  page.heat_maps.push_back({});
  page.timelines.push_back({});
  EXPECT_THAT(html(page), HasSubstr("</html>"));
}

TEST(AChromeTrace, NamesItsLanesAndSpansInMicroseconds) {
  EXPECT_EQ(chrome_trace(full_page().timelines[0]),
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
