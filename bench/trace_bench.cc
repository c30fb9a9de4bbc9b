// What making up, writing and reading a big trace costs: 58 layers of 256 experts, top-8 (and 64 experts,
// whose ids are a byte wide). Proved before it is timed: the bytes of one thread, a sound trace, what was
// written.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>

#include "grace/trace/synthetic.h"

namespace grace {
namespace {

SyntheticOptions options_of(int num_experts, std::int64_t tokens) {
  SyntheticOptions options;
  options.moe_layers = 58;
  options.dense_layers = 3;
  options.num_experts = num_experts;
  options.tokens = tokens;
  options.zipf = 0.8;
  options.drift = 0.5;
  return options;
}

void count(benchmark::State& state, const Trace& trace) {
  state.SetItemsProcessed(state.iterations() * trace.num_tokens() * trace.num_moe_layers());
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(trace.topk_ids.size()) * 2);
}

void synthesize(benchmark::State& state) {
  const SyntheticOptions options = options_of(static_cast<int>(state.range(0)), state.range(1));
  ThreadPool one(1);
  ThreadPool pool(static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
  SyntheticOptions few = options;
  few.tokens = 4'000;
  const Trace trace = synthetic_trace(few, one).value();
  if (!violations(trace).empty() || trace != synthetic_trace(few, pool).value()) {
    state.SkipWithError("the trace is not sound, or not the same at another number of threads");
    return;
  }
  Trace made;
  for (auto _ : state) {
    made = Trace();
    made = synthetic_trace(options, pool).value();
    benchmark::DoNotOptimize(made.topk_ids.data());
  }
  count(state, made);
}

// A trace file that is gone when the benchmark ends.
struct Scratch {
  std::filesystem::path path = std::filesystem::temp_directory_path() /
                               ("trace_bench." + std::to_string(getpid()) + ".safetensors");
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }
};

void write_and_read(benchmark::State& state, bool times_reading) {
  ThreadPool pool(static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
  const Trace trace =
      synthetic_trace(options_of(static_cast<int>(state.range(0)), state.range(1)), pool).value();
  const Scratch file;
  if (!write_trace(file.path, trace).ok() || read_trace(file.path).value() != trace) {
    state.SkipWithError("what was read is not what was written");
    return;
  }
  for (auto _ : state) {
    if (times_reading)
      benchmark::DoNotOptimize(read_trace(file.path).value().topk_ids.data());
    else
      benchmark::DoNotOptimize(write_trace(file.path, trace).ok());
  }
  count(state, trace);
}

BENCHMARK(synthesize)
    ->Args({256, 100'000})
    ->Args({64, 100'000})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK(synthesize)->Args({256, 1'000'000})->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(1);
BENCHMARK_CAPTURE(write_and_read, write, false)
    ->Args({256, 100'000})
    ->Args({64, 100'000})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(write_and_read, read, true)
    ->Args({256, 100'000})
    ->Args({64, 100'000})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace grace

BENCHMARK_MAIN();
