// What happened in a run, step by step, rank by rank, layer by layer, and its file (JSON lines).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/result.h"
#include "grace/runtime/engine.h"

namespace grace::app {

// Counters of every step: [rank][step][layer].
using StepCounters = std::vector<std::vector<std::vector<LayerCounters>>>;

struct StepSpan {
  std::int32_t step = 0;
  Span span;
};

// Moments (begin_s and end_s of counters and spans) count from the run's begin on rank 0's clock.
struct RunRecord {
  std::string model, cluster, transport, dispatch, combine, strategy;
  std::vector<int> devices_per_node;
  std::int64_t prompts = 0, prompt_tokens = 0, new_tokens = 0;
  double prefill_s = 0, decode_s = 0;
  std::int64_t decode_steps = 0;  // the last ones; those before are prefill
  bool aligned = false;           // whether ranks waited for one another before each exchange
  // Whether all ranks read the same clock; else the end of one barrier was taken for the same moment.
  bool one_clock = true;
  StepCounters steps;
  std::vector<std::vector<StepSpan>> spans;  // [rank]; none unless asked for, and not in the file

  double wall_s() const { return prefill_s + decode_s; }
};

// JSON lines: one `run` line, then one `layer` line for each step, rank and layer. Errors: io; invalid_input
// with line and field, for a line too few or twice, and for an exchange that ends before it begins.
Status write_record(const std::filesystem::path& path, const RunRecord& record);
Result<RunRecord> read_record(const std::filesystem::path& path);
// The same from memory; `place` stands for the path in messages.
Result<RunRecord> parse_record(std::string_view text, const std::string& place);

}  // namespace grace::app
