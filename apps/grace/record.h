// What happened in a run, step by step, rank by rank, layer by layer; its sums, and its file (JSON lines).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "grace/base/result.h"
#include "grace/runtime/engine.h"
#include "grace/runtime/generate.h"
#include "launch.h"

namespace grace::app {

// Counters of every step: [rank][step][layer].
using StepCounters = std::vector<std::vector<std::vector<LayerCounters>>>;

struct RunRecord {
  std::string model, cluster, transport, dispatch, strategy;
  std::vector<int> devices_per_node;
  std::int64_t prompts = 0, prompt_tokens = 0, new_tokens = 0;
  double prefill_s = 0, decode_s = 0;
  std::int64_t decode_steps = 0;
  StepCounters steps;

  double wall_s() const { return prefill_s + decode_s; }
};

// Sums over steps and layers. Times are those of the critical path: in each step, the slowest rank's over all
// layers. idle: how much longer the rank that waited most was inside the exchanges than the one that waited
// least.
struct RunSummary {
  LevelBytes dispatch, combine;
  double all_to_all_s = 0, idle_s = 0, moe_s = 0;
  double load_deviation = 0;  // standard deviation over mean of the devices' assignments; mean over layers
  double load_max_over_mean = 1;  // mean over layers

  std::int64_t cross_node_bytes() const;
  std::int64_t intra_node_bytes() const;
};
RunSummary summarise(const RunRecord& record);

// Runs the prompts with `plan` in place of the job's, on all ranks. `outputs`: new tokens, in the order of
// the prompts.
struct RecordedRun {
  RunRecord record;
  std::vector<std::vector<std::int32_t>> outputs;
};
Result<RecordedRun> run_recorded(Ranks& ranks, const Job& job, const Plan& plan,
                                 const std::vector<std::vector<std::int32_t>>& prompts,
                                 const GenerateOptions& options,
                                 const std::function<void(std::int64_t, std::int64_t)>& progress);

// JSON lines: one `run` line, then one `layer` line for each step, rank and layer. Errors: io; invalid_input
// with line and field.
Status write_record(const std::filesystem::path& path, const RunRecord& record);
Result<RunRecord> read_record(const std::filesystem::path& path);

}  // namespace grace::app
