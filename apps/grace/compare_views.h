// A comparison as tables, JSON and a page.
#pragma once

#include <string>
#include <vector>

#include "grace/files/json_file.h"
#include "grace/planner/compare.h"
#include "grace/report/report.h"

namespace grace::app {

// A row a contender: memory, vectors, loads, yardsticks with their distance to grace, seconds where they are
// known.
report::Table table_of(const Comparison& comparison, const std::string& title);
// How far each is from the best possible; no rows where none has a certificate.
report::Table certificates_of(const Comparison& comparison);
// docs/formats/compare.md.
Json json_of(const Comparison& comparison);

// A matrix a contender: plan on row, serve on column, each cell relative to the plan made for the column.
// Prefill and decode shapes alike.
report::Table table_of(const Transfer& transfer, const std::vector<std::string>& names,
                       const std::string& measure);
Json json_of(const Transfer& transfer, const std::vector<std::string>& names);

// Yardsticks by contender, and memory against the measure where a contender was given several budgets.
void add_pictures(report::Page& page, const Comparison& comparison);

}  // namespace grace::app
