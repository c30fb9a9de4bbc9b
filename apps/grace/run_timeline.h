// A run's spans for a trace viewer.
#pragma once

#include "grace/report/report.h"
#include "record.h"

namespace grace::app {

// A process for each rank, with a track for its work and as many for messages in flight as fly at once; each
// span tells its layer and step. Processes of several records, one for each strategy, stand side by side.
void add_run_spans(const RunRecord& record, report::TraceEvents& events);

}  // namespace grace::app
