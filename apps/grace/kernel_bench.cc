#include "kernel_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "grace/base/commas.h"
#include "kernel_bench_views.h"
#include "memory.h"
#include "options.h"
#include "progress.h"

namespace grace::app {
namespace {

constexpr const char* kDefaultShape = "olmoe";

Result<std::vector<int>> parse_tokens(const std::string& list) {
  constexpr int kMost = 1 << 16;
  std::vector<int> tokens;
  if (list.empty()) return tokens;
  for (const std::string& word : split_at_commas(list)) {
    int count = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), count);
    if (error != std::errc() || end != word.data() + word.size() || count < 1 || count > kMost)
      return invalid_input(fmt::format("--tokens: '{}' is no number in [1, {}]", word, kMost));
    tokens.push_back(count);
  }
  return tokens;
}

Result<KernelOptions> options_of(const BenchFlags& flags) {
  KernelOptions options;
  options.shape = GRACE_TRY(find_shape(flags.shape.empty() ? kDefaultShape : flags.shape));
  options.arithmetic.instructions = GRACE_TRY(kernels::find_instructions(flags.engine.kernels));
  options.arithmetic.numbers = GRACE_TRY(kernels::find_numbers(flags.engine.dtype));
  options.tokens = GRACE_TRY(parse_tokens(flags.tokens));
  constexpr int kMostThreads = 4096, kMostRounds = 1000;
  options.threads = flags.engine.threads;
  if (options.threads < 1 || options.threads > kMostThreads)
    return invalid_input(fmt::format("--threads: {} is outside [1, {}]", options.threads, kMostThreads));
  if (flags.rounds < 1 || flags.rounds > kMostRounds)
    return invalid_input(fmt::format("--rounds: {} is outside [1, {}]", flags.rounds, kMostRounds));
  return options;
}

// The groups take their memory one after another; the other library holds its weights beside ours.
Status check_memory_of(const std::vector<KernelGroup>& groups, const KernelOptions& options) {
  double most = 0;
  for (const KernelGroup& group : groups) most = std::max(most, group.bytes);
  const double of_peer = peer_version().empty()                                 ? 0
                         : options.arithmetic.numbers == kernels::Numbers::kF32 ? 2
                                                                                : 1;
  const double need = most * (1 + of_peer) + static_cast<double>(kernels::ReadProbe::kBytes);
  const std::optional<double> there = available_bytes();
  if (!there.has_value() || need <= *there) return {};
  return invalid_input(fmt::format("shape {}: its kernels take {:.1f} GiB, and {:.1f} GiB are available",
                                   options.shape.name, need / 0x1p30, *there / 0x1p30));
}

}  // namespace

Result<int> bench_kernels(const BenchFlags& flags, const Context& context) {
  GRACE_TRY(check_output_flags(flags.output, "bench"));
  KernelReport report;
  report.options = GRACE_TRY(options_of(flags));
  report.rounds = flags.rounds;
  ThreadPool pool(report.options.threads);
  const std::vector<KernelGroup> groups = kernel_groups(report.options, pool);
  GRACE_TRY(check_memory_of(groups, report.options));
  const kernels::Arithmetic& arithmetic = report.options.arithmetic;
  if (arithmetic.instructions == kernels::Instructions::kAmx && arithmetic.numbers != kernels::Numbers::kF32)
    report.in_registers.push_back(kernels::product_peak(arithmetic, kernels::Factors::kInRegisters, pool));
  Ceilings ceilings(arithmetic.instructions, pool);
  Progress progress("kernels");
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::vector<KernelCase> cases = groups[g].make();
    KernelFigures figures{groups[g].title, {}};
    for (const KernelCase& one : cases) {
      figures.figures.push_back(GRACE_TRY(measure_kernel(one, flags.rounds, ceilings)));
      progress(static_cast<std::int64_t>(g * cases.size() + figures.figures.size()),
               static_cast<std::int64_t>(groups.size() * cases.size()));
    }
    report.groups.push_back(std::move(figures));
  }
  GRACE_TRY(emit(flags.output, context, output_of(report)));
  return 0;
}

}  // namespace grace::app
