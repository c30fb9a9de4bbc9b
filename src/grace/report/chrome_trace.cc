#include <fmt/format.h>

#include "grace/report/report.h"
#include "grace/report/text.h"

namespace grace::report {

std::string chrome_trace(const Timeline& timeline) {
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  out += fmt::format("{{\"ph\":\"M\",\"pid\":0,\"name\":\"process_name\",\"args\":{{\"name\":{}}}}}",
                     json_string(timeline.title));
  for (std::size_t lane = 0; lane < timeline.lanes.size(); ++lane)
    out += fmt::format(
        ",\n{{\"ph\":\"M\",\"pid\":0,\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":{}}}}}", lane,
        json_string(timeline.lanes[lane]));
  for (const TimelineSpan& span : timeline.spans)
    out +=
        fmt::format(",\n{{\"ph\":\"X\",\"pid\":0,\"tid\":{},\"name\":{},\"ts\":{:.3f},\"dur\":{:.3f}}}",
                    span.lane, json_string(span.name), span.begin_s * 1e6, (span.end_s - span.begin_s) * 1e6);
  return out + "\n]}\n";
}

}  // namespace grace::report
