#include "bench_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "grace/planner/budget.h"

namespace grace::app {
namespace {

void add_contender_flags(CLI::App& command, BenchFlags& flags) {
  command.get_option("--dispatch")
      ->description(
          fmt::format("how all of them exchange: {} (default: each as its own engine does)", kDispatchHelp));
  command.add_option(
      "--strategies", flags.strategies,
      "which to compare, of those of grace plan, and padded and allgather, the default placement under the "
      "exchange of Tutel and of vLLM (default vanilla,grace)");
  command.add_option("--slots", flags.slots,
                     "copies a device may hold in a layer, for eplb and joint: a number, or grace for what "
                     "grace's own fullest device holds there (default: one more than it must)");
  command.add_option("--plans", flags.plans,
                     "a folder that keeps plans: a strategy's is STRATEGY.json there, or is made and written "
                     "there; a run with other options needs another folder");
}

void add_workload_flags(CLI::App& command, BenchFlags& flags) {
  command.add_option(
      "--text", flags.text,
      "prompts are windows of this text, and plans are made from its second half (default: random ids)");
  command.add_option(
      "--shape", flags.shape,
      "in place of a model: layers of this shape with random weights, a name or a config.json");
  command.add_option(
      "--routing", flags.routing,
      "with --shape: the trace that the gates take their choices from; plans are made from every "
      "second sequence, the others are served");
  command.add_option("--layers", flags.layers, "with --shape: MoE layers, the trace's first (default 2)");
  command.add_option("--batch", flags.batch, "prompts (default 128)");
  command.add_option("--prefill", flags.prefill, "tokens of a prompt (default 64)");
  command.add_option("--decode", flags.decode, "new tokens of each (default 16)");
}

void add_kernel_flags(CLI::App& command, BenchFlags& flags) {
  // Alone it is what to measure, and its value may be left out.
  command.get_option("--kernels")
      ->expected(0, 1)
      ->default_str("auto")
      ->description(
          "how products are calculated: auto (the best that this processor has), amx, avx512-bf16, avx512, "
          "avx2 or portable; without a model and --routing: measure each kernel so, against this machine's "
          "roofline, at the sizes of --shape (default olmoe)");
  command.add_option("--tokens", flags.tokens,
                     "with --kernels: tokens that share a call, as 1,16,512 (default: 1 to 8192 for experts, "
                     "a few for the rest)");
}

}  // namespace

void add_bench_flags(CLI::App& command, BenchFlags& flags) {
  flags.engine.dispatch = kOwnDispatch;
  add_engine_flags(command, flags.engine);
  command.get_option("MODEL")->required(false);
  add_contender_flags(command, flags);
  add_workload_flags(command, flags);
  add_kernel_flags(command, flags);
  command.add_option("--rounds", flags.rounds, "how often each strategy is run (default 3)");
  command.add_flag("--aligned", flags.aligned,
                   "ranks wait for one another before each exchange, so that its time is its own: for ranks "
                   "that share cores");
  command.add_option("--timeline", flags.timeline,
                     "also write what each rank did in the last round of each strategy, for Perfetto");
  add_output_flags(command, flags.output);
}

bool is_of_kernels(const CLI::App& command, const BenchFlags& flags) {
  return command.count("--kernels") > 0 && flags.engine.model.empty() && flags.routing.empty();
}

Status check_bench_flags(const BenchFlags& flags) {
  GRACE_TRY(check_output_flags(flags.output, "bench"));
  if (!flags.replays() && flags.engine.model.empty())
    return invalid_input("bench: needs a model folder, or --shape NAME and --routing TRACE");
  if (flags.replays() && !flags.engine.packed_cache.empty())
    return invalid_input("--packed-cache: keeps a MODEL's weights; those of --shape are made anew");
  if (flags.replays() && (!flags.engine.model.empty() || !flags.text.empty()))
    return invalid_input("bench: --shape and --routing go without a model and --text");
  if (flags.shape.empty() != flags.routing.empty())
    return invalid_input("bench: --shape NAME and --routing TRACE go together");
  if (!flags.slots.empty() && GRACE_TRY(parse_slots(flags.slots)).size() > 1)
    return invalid_input(fmt::format("--slots: '{}' is several budgets; a run has one", flags.slots));
  return {};
}

Status check_workload(const BenchFlags& flags, const ModelConfig& config) {
  const auto in = [](const char* name, int value, int lowest, int highest) -> Status {
    if (value >= lowest && value <= highest) return {};
    return invalid_input(fmt::format("{}: {} is outside [{}, {}]", name, value, lowest, highest));
  };
  GRACE_TRY(in("--batch", flags.batch, 1, 1 << 16));
  GRACE_TRY(in("--prefill", flags.prefill, 1, config.max_positions - 1));
  GRACE_TRY(in("--decode", flags.decode, 1, config.max_positions - flags.prefill));
  return in("--rounds", flags.rounds, 1, 1000);
}

}  // namespace grace::app
