// What grace bench is asked for.
#pragma once

#include <string>

#include "grace/base/result.h"
#include "grace/model/model.h"
#include "options.h"
#include "output.h"

namespace CLI {
class App;
}

namespace grace::app {

// --dispatch of bench's own: each strategy by the exchange of its own engine.
inline constexpr const char* kOwnDispatch = "own";

struct BenchFlags {
  EngineFlags engine;
  std::string text, strategies = "vanilla,grace", slots, shape, routing, plans, timeline;
  std::string tokens;  // of the kernels alone
  int layers = 2;
  int batch = 128, prefill = 64, decode = 16, rounds = 3;
  bool aligned = false;
  OutputFlags output;

  // Whether layers of a shape are served a trace's routing, in place of a model.
  bool replays() const { return !shape.empty() || !routing.empty(); }
};

void add_bench_flags(CLI::App& command, BenchFlags& flags);
// Whether the kernels themselves are to be measured. After the command line was read.
bool is_of_kernels(const CLI::App& command, const BenchFlags& flags);
// Before anything is read. Errors: invalid_input.
Status check_bench_flags(const BenchFlags& flags);
// Errors: invalid_input for a workload that the model cannot run.
Status check_workload(const BenchFlags& flags, const ModelConfig& config);

}  // namespace grace::app
