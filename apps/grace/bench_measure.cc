#include "bench_measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "grace/base/hash.h"
#include "progress.h"

namespace grace::app {
namespace {

// Over the prompts' lengths and tokens.
std::string hash_of(const std::vector<std::vector<std::int32_t>>& outputs) {
  Fnv1a hash;
  for (const auto& output : outputs) {
    hash.add_int(output.size(), 4);
    for (const std::int32_t token : output) hash.add_int(static_cast<std::uint32_t>(token), 4);
  }
  return hash.text();
}

void keep_worse(TextDifference& worst, const TextDifference& other) {
  const auto order = [](const TextDifference& one) {
    return std::pair(one.prompts - one.near_ties, one.prompts);
  };
  if (order(other) > order(worst)) worst = other;
}

void add_round(RecordedRun run, const RecordedRun& reference, double bound, Measured& measured) {
  keep_worse(measured.difference, difference_of(reference.outputs, reference.margins, run.outputs, bound));
  measured.outputs_hash = hash_of(run.outputs);
  measured.rounds.push_back(
      {summarise(run.record), run.record.prefill_s, run.record.decode_s, run.record.new_tokens});
  measured.last = std::move(run.record);
}

// As they were named, behind the first that is not lossy.
std::vector<std::size_t> order_of(const std::vector<Contender>& contenders) {
  std::vector<std::size_t> order(contenders.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto lossless =
      std::ranges::find_if(order, [&](std::size_t c) { return !contenders[c].plan.is_lossy(); });
  if (lossless != order.end()) std::rotate(order.begin(), lossless, lossless + 1);
  return order;
}

}  // namespace

bool Measurements::is_same_text() const {
  return std::ranges::all_of(of_contender,
                             [](const Measured& one) { return one.lossy || one.difference.prompts == 0; });
}

bool Measurements::is_explained() const {
  return std::ranges::all_of(of_contender,
                             [](const Measured& one) { return one.lossy || one.difference.is_explained(); });
}

Result<Measurements> measure(Ranks& ranks, const BenchJob& bench, const BenchFlags& flags,
                             const std::vector<Contender>& contenders) {
  GenerateOptions options;
  options.max_new_tokens = flags.decode;
  options.ignore_eos = true;
  options.seed = flags.engine.seed;
  Measurements all;
  all.near_tie_bound = near_tie_bound(bench.job.config, bench.job.combine, bench.job.wire);
  for (const Contender& contender : contenders)
    all.of_contender.push_back(
        {contender.name, contender.dispatch, contender.plan.is_lossy(), {}, {}, "", {}});
  const std::vector<std::size_t> order = order_of(contenders);
  std::optional<RecordedRun> reference;
  Progress progress("bench");
  const auto total = static_cast<std::int64_t>(contenders.size()) * flags.rounds;
  std::int64_t done = 0;
  for (int round = 0; round < flags.rounds; ++round)
    for (const std::size_t c : order) {
      Job job = bench.job;
      job.dispatch = contenders[c].dispatch;
      RecordedRun run = GRACE_TRY(run_recorded(ranks, job,
                                               {.plan = contenders[c].plan,
                                                .prompts = bench.prompts,
                                                .generate = options,
                                                .aligned = flags.aligned,
                                                .spans = !flags.timeline.empty(),
                                                .progress = {}}));
      run.record.strategy = contenders[c].name;
      if (!reference) reference = run;
      add_round(std::move(run), *reference, all.near_tie_bound, all.of_contender[c]);
      if (ranks.speaks()) progress(++done, total);
    }
  return all;
}

}  // namespace grace::app
