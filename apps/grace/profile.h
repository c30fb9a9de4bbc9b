// Runs sequences through the engine and keeps how they were routed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "grace/base/result.h"
#include "grace/comm/transport.h"
#include "grace/runtime/engine.h"
#include "grace/trace/trace.h"
#include "launch.h"

namespace grace::app {

struct ProfileOptions {
  Phase phase = Phase::kPrefill;
  int max_new_tokens = 0;      // decode and mixed: 0 means as many as the second half of the sequence has
  int sequences_per_rank = 8;  // in one step
  std::string source;          // into the trace
};

Result<Phase> parse_phase(const std::string& name);  // prefill, decode, both

// Collective; the whole trace on every rank, in the order of `sequences`. prefill: each sequence at once.
// decode, mixed: its first half at once, then a greedy continuation; of which decode keeps the continuation
// alone. REQUIRES: the engine records; no sequence is empty.
Result<Trace> profile_sequences(Engine& engine, Transport& transport,
                                const std::vector<std::vector<std::int32_t>>& sequences,
                                const ProfileOptions& options,
                                const std::function<void(std::int64_t, std::int64_t)>& progress);

// The same on all of `ranks`, over engines that serve the job's plan; shows its progress. Returns the whole
// trace on every process.
Result<Trace> profile_on_ranks(Ranks& ranks, const Job& job,
                               const std::vector<std::vector<std::int32_t>>& sequences,
                               const ProfileOptions& options);

}  // namespace grace::app
