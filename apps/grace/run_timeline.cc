#include "run_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace grace::app {
namespace {

bool is_message(Activity activity) {
  return activity == Activity::kDispatch || activity == Activity::kCombine;
}

// Tracks of one rank, made as they are needed: a viewer wants spans of a track apart or one inside another.
class MessageTracks {
 public:
  MessageTracks(std::string process, report::TraceEvents& events)
      : process_(std::move(process)), events_(events) {}

  // The first track that is free by then. Spans come in ascending order of begin_s.
  int track_for(const Span& span) {
    const auto free = std::ranges::find_if(busy_until_s_, [&](double end) { return end <= span.begin_s; });
    const auto index = static_cast<std::size_t>(free - busy_until_s_.begin());
    if (free == busy_until_s_.end()) {
      busy_until_s_.push_back(0);
      tracks_.push_back(static_cast<int>(events_.tracks.size()));
      events_.tracks.push_back({process_, index == 0 ? "messages" : fmt::format("messages {}", index + 1)});
    }
    busy_until_s_[index] = span.end_s;
    return tracks_[index];
  }

 private:
  std::string process_;
  report::TraceEvents& events_;
  std::vector<double> busy_until_s_;
  std::vector<int> tracks_;
};

}  // namespace

void add_run_spans(const RunRecord& record, report::TraceEvents& events) {
  for (std::size_t rank = 0; rank < record.spans.size(); ++rank) {
    const std::string process = fmt::format("{}, rank {}", record.strategy, rank);
    const int work = static_cast<int>(events.tracks.size());
    events.tracks.push_back({process, "work"});
    MessageTracks messages(process, events);
    std::vector<StepSpan> spans = record.spans[rank];
    std::ranges::stable_sort(
        spans, [](const StepSpan& a, const StepSpan& b) { return a.span.begin_s < b.span.begin_s; });
    for (const auto& [step, span] : spans)
      events.spans.push_back({is_message(span.activity) ? messages.track_for(span) : work,
                              span.begin_s,
                              span.end_s,
                              std::string(name_of(span.activity)),
                              {{"layer", span.layer}, {"step", step}}});
  }
}

}  // namespace grace::app
