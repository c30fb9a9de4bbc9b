// A comparison as tables, JSON and a page.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "grace/files/json.h"
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

// The verdict with its key figures; strategies, what memory buys and certificates as sections.
void add_comparison(report::Page& page, const Comparison& comparison);
// A matrix for each contender: how much more than the plan made for the column.
report::HeatMap heat_map_of(std::span<const Transfer> transfers, const std::vector<std::string>& names);
// "layer time [us]": the figure that decides, with its unit.
std::string measure_name(const Comparison& comparison);

}  // namespace grace::app
