// What a report shows beside strategies and plans: the knee curve, drift, a run, and how it all was made.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "grace/files/json.h"
#include "grace/grouping/grouping.h"
#include "grace/planner/compare.h"
#include "grace/report/report.h"
#include "grace/trace/trace.h"
#include "record.h"

namespace grace::app {

// The (S, U) curve with its knee marked. REQUIRES: curve is not empty.
report::Section knee_section(std::span<const KneePoint> curve);
Json json_of(std::span<const KneePoint> curve);

// Texts that plans are carried between: several traces as they are, one trace as up to four parts of its
// sequences in order.
struct DriftParts {
  std::vector<Trace> traces;
  std::vector<std::string> names;
};
// No parts where one trace has fewer than four sequences: each part needs two.
DriftParts parts_of(std::span<const Trace> traces, std::span<const std::string> names);
report::Section drift_section(std::span<const Transfer> transfers, const DriftParts& parts, bool one_trace,
                              const std::string& measure);

report::Section run_section(const RunRecord& record);
Json run_json(const RunRecord& record);

}  // namespace grace::app
