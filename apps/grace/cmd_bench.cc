// grace bench: the published workload, strategies in turn in the same engine.
#include <CLI/CLI.hpp>
#include <memory>

#include "bench_contenders.h"
#include "bench_measure.h"
#include "bench_views.h"
#include "context.h"
#include "grace/files/mapped_file.h"
#include "kernel_bench.h"
#include "run_timeline.h"

namespace grace::app {
namespace {

Status write_timeline(const std::string& path, const Measurements& measured) {
  report::TraceEvents events;
  for (const Measured& one : measured.of_contender) add_run_spans(one.last, events);
  return write_text_atomically(path, report::chrome_trace(events));
}

Result<int> bench(const BenchFlags& flags, const Context& context) {
  const BenchJob bench = GRACE_TRY(prepare_bench(flags));
  Ranks ranks = GRACE_TRY(Ranks::make(bench.job, context));
  const std::vector<Contender> contenders = GRACE_TRY(contenders_of(ranks, bench, flags));
  const Measurements measured = GRACE_TRY(measure(ranks, bench, flags, contenders));
  if (!ranks.speaks()) return 0;
  if (!flags.timeline.empty()) GRACE_TRY(write_timeline(flags.timeline, measured));
  GRACE_TRY(emit(flags.output, context, output_of(measured, flags, bench.job)));
  return measured.is_explained() ? 0 : 1;
}

}  // namespace

void add_bench(CLI::App& app, Context& context) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = app.add_subcommand(
      "bench", "The published workload: a batch of equal prompts, strategies in turn in the same engine.");
  add_bench_flags(*command, *flags);
  command->footer(
      "Examples:\n  grace bench models/demo --text models/demo/heldout/judge/en.txt --cluster 2x2 "
      "--strategies vanilla,padded,allgather,grace,joint --html out/bench.html\n"
      "  grace bench --shape deepseek-v2-lite --routing deepseek.trace --cluster 2x2 --strategies "
      "vanilla,grace,joint --slots grace --aligned --timeline out/bench.trace.json\n"
      "  grace bench --kernels --shape olmoe --dtype bf16 --threads 2");
  command->callback([flags, command, &context] {
    const bool of_kernels = is_of_kernels(*command, *flags);
    context.action = [flags, of_kernels, &context] {
      return of_kernels ? bench_kernels(*flags, context) : bench(*flags, context);
    };
  });
}

}  // namespace grace::app
