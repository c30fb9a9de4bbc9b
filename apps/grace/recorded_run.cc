#include "recorded_run.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "grace/files/mapped_file.h"
#include "grace/runtime/stopwatch.h"

namespace grace::app {
namespace {

// What the steady clock is the same within: this boot of this machine and this time namespace.
std::string clock_space() {
  const Result<std::string> boot = read_text("/proc/sys/kernel/random/boot_id");
  if (!boot.ok()) return "";
  char time_space[64] = {};
  const ssize_t length = readlink("/proc/self/ns/time", time_space, sizeof time_space);
  return boot.value() + std::string(time_space, length > 0 ? static_cast<std::size_t>(length) : 0);
}

struct Origin {
  double at_s = 0;  // the run's begin by this rank's clock
  bool one_clock = true;
};

// Collective. Nobody leaves before everyone has read the clock, so no moment of the run is before its begin.
Result<Origin> common_begin(Transport& transport) {
  GRACE_TRY(transport.barrier());
  const double now = now_s();
  std::string mine(sizeof now, '\0');
  std::memcpy(mine.data(), &now, sizeof now);
  mine += clock_space();
  const auto all = GRACE_TRY(transport.all_gather(std::as_bytes(std::span(mine))));
  Origin origin{now, mine.size() > sizeof now};
  for (const std::vector<std::byte>& theirs : all)
    origin.one_clock =
        origin.one_clock && std::ranges::equal(std::span(theirs).subspan(std::min(theirs.size(), sizeof now)),
                                               std::as_bytes(std::span(mine)).subspan(sizeof now));
  if (origin.one_clock) std::memcpy(&origin.at_s, all[0].data(), sizeof now);
  return origin;
}

// Passes everything on, and keeps counters and spans of each step apart, their moments from the run's begin.
class RecordingEngine final : public Engine {
 public:
  RecordingEngine(Engine& inner, double origin_s) : inner_(inner), origin_s_(origin_s) {
    inner_.clear_counters();
    inner_.take_spans();
  }
  const ModelConfig& config() const override { return inner_.config(); }
  void reset(int num_sequences) override { inner_.reset(num_sequences); }
  void release(int sequence) override { inner_.release(sequence); }
  Status step(const StepInput& input, bool all_logits, std::vector<float>& logits) override {
    Status done = inner_.step(input, all_logits, logits);
    for (LayerCounters layer : inner_.counters()) {
      for (double* moment :
           {&layer.dispatch_begin_s, &layer.dispatch_end_s, &layer.combine_begin_s, &layer.combine_end_s})
        if (*moment > 0) *moment -= origin_s_;  // 0: there was no exchange
      steps_.push_back(layer);
    }
    for (Span span : inner_.take_spans()) {
      span.begin_s -= origin_s_;
      span.end_s -= origin_s_;
      spans_.push_back({num_steps_, span});
    }
    ++num_steps_;
    inner_.clear_counters();
    return done;
  }
  std::span<const LayerCounters> counters() const override { return inner_.counters(); }
  void clear_counters() override { inner_.clear_counters(); }
  std::vector<Span> take_spans() override { return inner_.take_spans(); }
  Trace take_trace() override { return inner_.take_trace(); }

  std::span<const LayerCounters> steps() const { return steps_; }  // [steps, M]
  std::span<const StepSpan> spans() const { return spans_; }

 private:
  Engine& inner_;
  double origin_s_;
  std::int32_t num_steps_ = 0;
  std::vector<LayerCounters> steps_;
  std::vector<StepSpan> spans_;
};

// Collective: everyone's, by rank.
template <typename T>
Result<std::vector<std::vector<T>>> gather(Transport& transport, std::span<const T> mine) {
  static_assert(std::is_trivially_copyable_v<T>, "it travels as bytes");
  const auto all = GRACE_TRY(transport.all_gather(std::as_bytes(mine)));
  std::vector<std::vector<T>> lists;
  for (const std::vector<std::byte>& bytes : all) {
    auto& list = lists.emplace_back(bytes.size() / sizeof(T));
    if (!list.empty()) std::memcpy(static_cast<void*>(list.data()), bytes.data(), list.size() * sizeof(T));
  }
  return lists;
}

StepCounters by_step(const std::vector<std::vector<LayerCounters>>& of_rank, int num_layers) {
  const auto layers = static_cast<std::size_t>(num_layers);
  StepCounters steps;
  for (const std::vector<LayerCounters>& flat : of_rank) {
    auto& mine = steps.emplace_back();
    for (std::size_t at = 0; layers > 0 && at + layers <= flat.size(); at += layers)
      mine.emplace_back(flat.begin() + static_cast<std::ptrdiff_t>(at),
                        flat.begin() + static_cast<std::ptrdiff_t>(at + layers));
  }
  return steps;
}

std::int64_t total_length(const std::vector<std::vector<std::int32_t>>& lists) {
  std::int64_t total = 0;
  for (const auto& list : lists) total += static_cast<std::int64_t>(list.size());
  return total;
}

// Names and sizes, which are known without running.
RunRecord described(const Job& job, const RunWanted& wanted) {
  RunRecord record;
  record.model = job.config.name;
  record.cluster = job.cluster.name;
  record.transport = job.mpi ? "mpi" : "in_process";
  record.dispatch = dispatch_name(job, job.dispatch);
  record.combine = name_of(job.combine);
  record.strategy = wanted.plan.strategy;
  record.devices_per_node = wanted.plan.devices_per_node;
  record.prompts = static_cast<std::int64_t>(wanted.prompts.size());
  record.prompt_tokens = total_length(wanted.prompts);
  record.aligned = wanted.aligned;
  return record;
}

}  // namespace

Result<RecordedRun> run_recorded(Ranks& ranks, const Job& job, const RunWanted& wanted) {
  RecordedRun run;
  run.record = described(job, wanted);
  const Status ran = ranks.run([&](Transport& transport, ThreadPool& pool) -> Status {
    EngineOptions how = engine_options(job);
    how.record_spans = wanted.spans;
    how.aligned = wanted.aligned;
    const auto engine =
        GRACE_TRY(job.replay != nullptr
                      ? make_replay_engine(*job.replay, wanted.plan, job.cluster, transport, pool, how)
                      : Engine::make(job.model, wanted.plan, job.cluster, transport, pool, how));
    const Origin origin = GRACE_TRY(common_begin(transport));
    RecordingEngine recorder(*engine, origin.at_s);
    GenerateResult made =
        GRACE_TRY(generate(recorder, transport, wanted.prompts, wanted.generate, wanted.progress));
    const auto counters = GRACE_TRY(gather(transport, recorder.steps()));
    auto spans = GRACE_TRY(gather(transport, recorder.spans()));
    if (!ranks.keeps(transport)) return {};
    run.record.prefill_s = made.prefill_s;
    run.record.decode_s = made.decode_s;
    run.record.decode_steps = made.decode_steps;
    run.record.new_tokens = total_length(made.outputs);
    run.record.one_clock = origin.one_clock;
    run.record.steps = by_step(counters, job.config.moe_layers.empty() ? 0 : wanted.plan.num_moe_layers());
    if (wanted.spans) run.record.spans = std::move(spans);
    run.outputs = std::move(made.outputs);
    run.margins = std::move(made.margins);
    return {};
  });
  if (!ran.ok()) return ran.error();
  return run;
}

}  // namespace grace::app
