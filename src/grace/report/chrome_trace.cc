#include <fmt/format.h>

#include <map>

#include "grace/report/report.h"
#include "grace/report/text.h"

namespace grace::report {
namespace {

std::string numbers_json(const TraceSpan& span) {
  if (span.numbers.empty()) return "";
  std::string out;
  for (const auto& [name, value] : span.numbers)
    out += fmt::format("{}{}:{}", out.empty() ? ",\"args\":{" : ",", json_string(name), value);
  return out + "}";
}

}  // namespace

// Numbers of processes and tracks begin at 1: a viewer takes process and thread 0 for the idle ones.
std::string chrome_trace(const TraceEvents& events) {
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  const char* separator = "\n";
  const auto add = [&](const std::string& event) {
    out.append(separator).append(event);
    separator = ",\n";
  };
  std::map<std::string, int> pid_of_process;
  std::vector<int> pid_of_track;
  for (std::size_t track = 0; track < events.tracks.size(); ++track) {
    const auto& [process, name] = events.tracks[track];
    const auto [known, is_new] =
        pid_of_process.try_emplace(process, static_cast<int>(pid_of_process.size()) + 1);
    const int pid = pid_of_track.emplace_back(known->second);
    if (is_new)
      add(fmt::format("{{\"ph\":\"M\",\"pid\":{},\"name\":\"process_name\",\"args\":{{\"name\":{}}}}}", pid,
                      json_string(process)));
    add(fmt::format(
        "{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":{}}}}}", pid,
        track + 1, json_string(name)));
  }
  for (const TraceSpan& span : events.spans)
    add(fmt::format("{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"name\":{},\"ts\":{:.3f},\"dur\":{:.3f}{}}}",
                    pid_of_track[static_cast<std::size_t>(span.track)], span.track + 1,
                    json_string(span.name), span.begin_s * 1e6, (span.end_s - span.begin_s) * 1e6,
                    numbers_json(span)));
  return out + "\n]}\n";
}

std::string chrome_trace(const Timeline& timeline) {
  TraceEvents events;
  for (const std::string& lane : timeline.lanes) events.tracks.push_back({timeline.title, lane});
  for (const TimelineSpan& span : timeline.spans)
    events.spans.push_back({span.lane, span.begin_s, span.end_s, span.name, {}});
  return chrome_trace(events);
}

}  // namespace grace::report
