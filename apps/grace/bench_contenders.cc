#include "bench_contenders.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

#include "grace/base/commas.h"
#include "grace/base/rng.h"
#include "grace/planner/budget.h"
#include "grace/planner/planner.h"
#include "grace/sizing/sizes.h"
#include "memory.h"
#include "profile.h"

namespace grace::app {
namespace {

using Lists = std::vector<std::vector<std::int32_t>>;

// How a strategy's own engine exchanges: MegaBlocks per expert, Tutel and DeepSpeed padded, vLLM by
// all-gather, Occult and C2R per device, the rest in two stages.
Dispatch own_dispatch(std::string_view strategy) {
  if (strategy == "vanilla") return Dispatch::kFlat;
  if (strategy == "padded") return Dispatch::kPadded;
  if (strategy == "allgather") return Dispatch::kAllGather;
  if (strategy == "occult" || strategy == "c2r") return Dispatch::kPerDevice;
  return Dispatch::kTwoStage;
}
// Those that stand for another engine's exchange over the default placement.
bool is_default_placement(std::string_view strategy) {
  return strategy == "vanilla" || strategy == "padded" || strategy == "allgather";
}

// `batch` prompts of `prefill` ids: windows of the text, from its start again when it is too short, or random
// ids.
Result<Lists> prompts_of(const BenchFlags& flags, const ModelConfig& config) {
  Lists prompts;
  if (flags.text.empty()) {
    for (int p = 0; p < flags.batch; ++p) {
      Rng rng = Rng(flags.engine.seed).fork(static_cast<std::uint64_t>(p));
      auto& ids = prompts.emplace_back();
      for (int i = 0; i < flags.prefill; ++i)
        ids.push_back(static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(config.vocab_size))));
    }
    return prompts;
  }
  const Tokenizer tokenizer = GRACE_TRY(load_tokenizer(flags.engine.model));
  const std::vector<std::int32_t> ids = GRACE_TRY(read_and_encode(tokenizer, flags.text));
  for (int p = 0; p < flags.batch; ++p) {
    auto& prompt = prompts.emplace_back();
    for (int i = 0; i < flags.prefill; ++i)
      prompt.push_back(ids[static_cast<std::size_t>(std::int64_t{p} * flags.prefill + i) % ids.size()]);
  }
  return prompts;
}

// A trace of the second half of the text's windows; the first are what is measured.
Result<Trace> profile_text(Ranks& ranks, const Job& job, const BenchFlags& flags) {
  const Tokenizer tokenizer = GRACE_TRY(load_tokenizer(flags.engine.model));
  const Lists windows =
      windows_of(GRACE_TRY(read_and_encode(tokenizer, flags.text)), std::min(256, job.config.max_positions));
  const auto half = static_cast<std::ptrdiff_t>(windows.size() / 2);
  const Lists sequences(windows.begin() + half, windows.end());
  ProfileOptions options;
  options.source = flags.text;
  return profile_on_ranks(ranks, job, sequences, options);
}

// The routing that --routing names, its even sequences to serve and its odd ones to plan from.
struct Routing {
  Trace served, learned;
};

Result<Routing> read_routing(const BenchFlags& flags, const ModelShape& shape) {
  const Trace whole = GRACE_TRY(read_trace(flags.routing));
  if (whole.num_experts != shape.num_experts || whole.experts_per_token != shape.experts_per_token)
    return invalid_input(fmt::format("{}: routing of {} experts, {} a token; shape {} has {}, {} a token",
                                     flags.routing, whole.num_experts, whole.experts_per_token, shape.name,
                                     shape.num_experts, shape.experts_per_token));
  if (flags.layers < 1 || flags.layers > whole.num_moe_layers())
    return invalid_input(
        fmt::format("--layers: {} is outside [1, {}]", flags.layers, whole.num_moe_layers()));
  const Trace trace = first_layers(whole, flags.layers);
  std::vector<int> of_half[2];
  for (int s = 0; s < trace.num_sequences(); ++s)
    if (trace.sequence_offsets[static_cast<std::size_t>(s) + 1] >
        trace.sequence_offsets[static_cast<std::size_t>(s)])
      of_half[s % 2].push_back(s);
  if (of_half[0].empty() || of_half[1].empty())
    return invalid_input(
        fmt::format("{}: needs two sequences with tokens, one to serve and one to plan from", flags.routing));
  return Routing{select_sequences(trace, of_half[0]), select_sequences(trace, of_half[1])};
}

// A job without a model folder: layers of the shape with random weights, gated by the trace.
Result<BenchJob> prepare_replay(const BenchFlags& flags, const EngineFlags& engine) {
  BenchJob bench;
  Job& job = bench.job;
  GRACE_TRY(prepare_ranks(engine, job));
  const ModelShape shape = GRACE_TRY(shape_for(flags.shape, ""));
  Routing routing = GRACE_TRY(read_routing(flags, shape));
  bench.learned = std::move(routing.learned);
  job.replay = std::make_shared<const ReplaySource>(
      ReplaySource{std::move(routing.served), shape.hidden, shape.expert_ffn, engine.seed});
  job.config = config_of(*job.replay);
  job.config.name = fmt::format("{} ({} of its MoE layers, random weights)", shape.name, flags.layers);
  if (!engine.plan.empty()) job.plan = GRACE_TRY(read_plan_for(engine.plan, job));
  return bench;
}

double bytes_per_weight(const WeightForm& form) {
  switch (kernels::storage_of(form.element, form.numbers)) {
    case kernels::Storage::kF32:
      return 4;
    case kernels::Storage::kBf16:
      return 2;
    case kernels::Storage::kInt8:
      return 1;
  }
  return 4;
}

// The batch is the prefill, which is the most that runs together.
Result<PlanOptions> plan_options(const BenchFlags& flags, const Job& job, const Trace& trace,
                                 const std::string& strategy, ThreadPool& pool) {
  PlanOptions options;
  options.strategy = strategy;
  options.seed = flags.engine.seed;
  options.objective.sizes = {.hidden = job.config.hidden_size,
                             .expert_ffn = job.config.expert_ffn_size,
                             .bytes_per_value = static_cast<double>(bytes_per_value(job.wire)),
                             .bytes_per_weight = bytes_per_weight(job.form)};
  options.objective.batch = std::int64_t{flags.batch} * flags.prefill;
  if (flags.slots.empty()) return options;
  const SlotsSpec spec = GRACE_TRY(parse_slots(flags.slots)).front();
  options.slots = GRACE_TRY(slots_for(spec, trace, job.cluster, options.seed, pool));
  return options;
}

// Plans of one bench, from the folder or made; the trace is profiled when the first one needs it.
class Plans {
 public:
  Plans(Ranks& ranks, const BenchJob& bench, const BenchFlags& flags)
      : ranks_(ranks), job_(bench.job), flags_(flags), trace_(bench.learned) {}

  Result<Plan> of(const std::string& strategy) {
    if (is_default_placement(strategy))
      return vanilla_plan(job_.config.name, job_.config.num_experts, job_.config.moe_layers, job_.cluster);
    if (!flags_.engine.plan.empty() && job_.plan.strategy == strategy) return job_.plan;
    const std::filesystem::path kept = std::filesystem::path(flags_.plans) / (strategy + ".json");
    if (!flags_.plans.empty() && std::filesystem::exists(kept)) return read_plan_for(kept.string(), job_);
    Plan plan = GRACE_TRY(make(strategy));
    if (!flags_.plans.empty() && ranks_.speaks()) GRACE_TRY(write_plan(kept, plan));
    return plan;
  }

 private:
  Result<Plan> make(const std::string& strategy) {
    if (flags_.text.empty() && !trace_)
      return invalid_input(
          fmt::format("bench: strategy {} needs --plan made by it, or --text to plan from", strategy));
    if (!trace_) trace_ = GRACE_TRY(profile_text(ranks_, job_, flags_));
    ThreadPool pool(job_.threads);
    const PlanOptions options = GRACE_TRY(plan_options(flags_, job_, *trace_, strategy, pool));
    return GRACE_TRY(make_plan(*trace_, job_.cluster, options, pool)).plan;
  }

  Ranks& ranks_;
  const Job& job_;
  const BenchFlags& flags_;
  std::optional<Trace> trace_;
};

}  // namespace

Result<BenchJob> prepare_bench(const BenchFlags& flags) {
  GRACE_TRY(check_bench_flags(flags));
  EngineFlags engine = flags.engine;
  if (engine.dispatch == kOwnDispatch) engine.dispatch = name_of(Dispatch::kTwoStage);
  BenchJob bench;
  if (flags.replays())
    bench = GRACE_TRY(prepare_replay(flags, engine));
  else
    bench.job = GRACE_TRY(prepare_job(engine));
  GRACE_TRY(check_workload(flags, bench.job.config));
  bench.prompts = GRACE_TRY(prompts_of(flags, bench.job.config));
  return bench;
}

Result<std::vector<Contender>> contenders_of(Ranks& ranks, const BenchJob& bench, const BenchFlags& flags) {
  std::vector<Contender> contenders;
  Plans plans(ranks, bench, flags);
  const bool is_own = flags.engine.dispatch == kOwnDispatch;
  for (const std::string& name : split_at_commas(flags.strategies)) {
    Plan plan = GRACE_TRY(plans.of(name));
    contenders.push_back({name, std::move(plan), is_own ? own_dispatch(name) : bench.job.dispatch});
  }
  if (contenders.empty()) return invalid_input("--strategies: none is named");
  const int ranks_of_job = bench.job.cluster.num_devices();
  const std::int64_t prompts_of_rank = (flags.batch + ranks_of_job - 1) / ranks_of_job;
  for (const Contender& contender : contenders)
    GRACE_TRY(check_memory(bench.job, contender.plan, prompts_of_rank * (flags.prefill + flags.decode)));
  return contenders;
}

}  // namespace grace::app
