#include "record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "grace/files/json_file.h"
#include "grace/files/mapped_file.h"

namespace grace::app {
namespace {

// Passes everything on, and keeps the counters of each step apart.
class RecordingEngine final : public Engine {
 public:
  explicit RecordingEngine(Engine& inner) : inner_(inner) { inner_.clear_counters(); }
  const ModelConfig& config() const override { return inner_.config(); }
  void reset(int num_sequences) override { inner_.reset(num_sequences); }
  void release(int sequence) override { inner_.release(sequence); }
  Status step(const StepInput& input, bool all_logits, std::vector<float>& logits) override {
    Status done = inner_.step(input, all_logits, logits);
    const auto layers = inner_.counters();
    steps_.insert(steps_.end(), layers.begin(), layers.end());
    inner_.clear_counters();
    return done;
  }
  std::span<const LayerCounters> counters() const override { return inner_.counters(); }
  void clear_counters() override { inner_.clear_counters(); }
  std::vector<Span> take_spans() override { return inner_.take_spans(); }
  Trace take_trace() override { return inner_.take_trace(); }

  std::span<const LayerCounters> steps() const { return steps_; }  // [steps, M]

 private:
  Engine& inner_;
  std::vector<LayerCounters> steps_;
};

static_assert(std::is_trivially_copyable_v<LayerCounters>, "counters travel as bytes");

Result<StepCounters> gather_steps(Transport& transport, std::span<const LayerCounters> mine, int num_layers) {
  const auto all = GRACE_TRY(transport.all_gather(std::as_bytes(mine)));
  const auto layers = static_cast<std::size_t>(num_layers);
  StepCounters steps;
  for (const std::vector<std::byte>& bytes : all) {
    std::vector<LayerCounters> flat(bytes.size() / sizeof(LayerCounters));
    if (!flat.empty())
      std::memcpy(static_cast<void*>(flat.data()), bytes.data(), flat.size() * sizeof(LayerCounters));
    auto& of_rank = steps.emplace_back();
    for (std::size_t at = 0; layers > 0 && at + layers <= flat.size(); at += layers)
      of_rank.emplace_back(flat.begin() + static_cast<std::ptrdiff_t>(at),
                           flat.begin() + static_cast<std::ptrdiff_t>(at + layers));
  }
  return steps;
}

std::int64_t total_length(const std::vector<std::vector<std::int32_t>>& lists) {
  std::int64_t total = 0;
  for (const auto& list : lists) total += static_cast<std::int64_t>(list.size());
  return total;
}

}  // namespace

std::int64_t RunSummary::cross_node_bytes() const {
  return dispatch.cross_node_payload + dispatch.cross_node_header + combine.cross_node_payload +
         combine.cross_node_header;
}

std::int64_t RunSummary::intra_node_bytes() const {
  return dispatch.intra_node_payload + dispatch.intra_node_header + combine.intra_node_payload +
         combine.intra_node_header;
}

RunSummary summarise(const RunRecord& record) {
  RunSummary sum;
  const std::size_t ranks = record.steps.size();
  const std::size_t steps = ranks > 0 ? record.steps[0].size() : 0;
  const std::size_t layers = steps > 0 ? record.steps[0][0].size() : 0;
  if (layers == 0) return sum;
  for (std::size_t step = 0; step < steps; ++step) {
    double exchange = 0, longest_wait = 0, shortest_wait = std::numeric_limits<double>::max(), whole = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      LayerCounters all;  // times only
      for (const LayerCounters& one : record.steps[rank][step]) {
        sum.dispatch += one.dispatch;
        sum.combine += one.combine;
        all.dispatch_s += one.dispatch_s + one.combine_s;
        all.wait_s += one.wait_s;
        all.gate_s += one.gate_s + one.experts_s;
      }
      exchange = std::max(exchange, all.dispatch_s);
      longest_wait = std::max(longest_wait, all.wait_s);
      shortest_wait = std::min(shortest_wait, all.wait_s);
      whole = std::max(whole, all.gate_s + all.dispatch_s);
    }
    sum.all_to_all_s += exchange;
    sum.idle_s += longest_wait - shortest_wait;
    sum.moe_s += whole;
  }
  sum.load_max_over_mean = 0;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    std::vector<std::int64_t> load(ranks, 0);
    for (std::size_t rank = 0; rank < ranks; ++rank)
      for (std::size_t step = 0; step < steps; ++step)
        load[rank] += record.steps[rank][step][layer].assignments;
    std::int64_t total = 0;
    for (const std::int64_t value : load) total += value;
    const double mean = static_cast<double>(total) / static_cast<double>(ranks);
    if (mean > 0) sum.load_deviation += standard_deviation(load) / mean / static_cast<double>(layers);
    sum.load_max_over_mean += max_over_mean(load) / static_cast<double>(layers);
  }
  return sum;
}

Result<RecordedRun> run_recorded(Ranks& ranks, const Job& job, const Plan& plan,
                                 const std::vector<std::vector<std::int32_t>>& prompts,
                                 const GenerateOptions& options,
                                 const std::function<void(std::int64_t, std::int64_t)>& progress) {
  RecordedRun run;
  const Status ran = ranks.run([&](Transport& transport, ThreadPool& pool) -> Status {
    const EngineOptions how{.dispatch = job.dispatch, .combine = job.combine};
    const auto engine = GRACE_TRY(
        job.replay != nullptr ? make_replay_engine(*job.replay, plan, job.cluster, transport, pool, how)
                              : Engine::make(job.model, plan, job.cluster, transport, pool, how));
    RecordingEngine recorder(*engine);
    GenerateResult made = GRACE_TRY(generate(recorder, transport, prompts, options, progress));
    StepCounters steps = GRACE_TRY(
        gather_steps(transport, recorder.steps(), job.config.moe_layers.empty() ? 0 : plan.num_moe_layers()));
    if (!ranks.keeps(transport)) return {};
    run.record.prefill_s = made.prefill_s;
    run.record.decode_s = made.decode_s;
    run.record.decode_steps = made.decode_steps;
    run.record.new_tokens = total_length(made.outputs);
    run.record.steps = std::move(steps);
    run.outputs = std::move(made.outputs);
    return {};
  });
  if (!ran.ok()) return ran.error();
  run.record.model = job.config.name;
  run.record.cluster = job.cluster.name;
  run.record.transport = job.mpi ? "mpi" : "in_process";
  run.record.dispatch = name_of(job.dispatch);
  run.record.strategy = plan.strategy;
  run.record.devices_per_node = plan.devices_per_node;
  run.record.prompts = static_cast<std::int64_t>(prompts.size());
  run.record.prompt_tokens = total_length(prompts);
  return run;
}

namespace {

Json json_of(const LevelBytes& bytes) {
  return {{"intra_node_payload", bytes.intra_node_payload},
          {"cross_node_payload", bytes.cross_node_payload},
          {"intra_node_header", bytes.intra_node_header},
          {"cross_node_header", bytes.cross_node_header}};
}

constexpr std::int64_t kMost = std::int64_t{1} << 60;
constexpr std::int64_t kMostParts =
    1 << 20;  // ranks, steps, layers: beyond any run, so that a wrong file asks for no memory

Result<LevelBytes> level_bytes(const Json& line, const char* key, const std::string& place) {
  if (!line.contains(key)) return invalid_input(fmt::format("{}: {} is missing", place, key));
  const Json& json = line.at(key);
  LevelBytes bytes;
  bytes.intra_node_payload = GRACE_TRY(get_int(json, "intra_node_payload", place, 0, kMost));
  bytes.cross_node_payload = GRACE_TRY(get_int(json, "cross_node_payload", place, 0, kMost));
  bytes.intra_node_header = GRACE_TRY(get_int(json, "intra_node_header", place, 0, kMost));
  bytes.cross_node_header = GRACE_TRY(get_int(json, "cross_node_header", place, 0, kMost));
  return bytes;
}

Result<LayerCounters> layer_counters(const Json& line, const std::string& place) {
  LayerCounters one;
  one.tokens = GRACE_TRY(get_int(line, "tokens", place, 0, kMost));
  one.assignments = GRACE_TRY(get_int(line, "assignments", place, 0, kMost));
  one.dispatch = GRACE_TRY(level_bytes(line, "dispatch", place));
  one.combine = GRACE_TRY(level_bytes(line, "combine", place));
  one.gate_s = GRACE_TRY(get_number(line, "gate_s", place));
  one.dispatch_s = GRACE_TRY(get_number(line, "dispatch_s", place));
  one.experts_s = GRACE_TRY(get_number(line, "experts_s", place));
  one.combine_s = GRACE_TRY(get_number(line, "combine_s", place));
  one.wait_s = GRACE_TRY(get_number(line, "wait_s", place));
  return one;
}

Result<RunRecord> run_line(const Json& line, const std::string& place, std::int64_t& steps,
                           std::int64_t& layers) {
  RunRecord record;
  if (!line.is_object()) return invalid_input(place + ": not a run record");
  record.model = GRACE_TRY(get_string(line, "model", place));
  record.cluster = GRACE_TRY(get_string(line, "cluster", place));
  record.transport = GRACE_TRY(get_string(line, "transport", place));
  record.dispatch = GRACE_TRY(get_string(line, "dispatch", place));
  record.strategy = GRACE_TRY(get_string(line, "strategy", place));
  record.prompts = GRACE_TRY(get_int(line, "prompts", place, 0, kMost));
  record.prompt_tokens = GRACE_TRY(get_int(line, "prompt_tokens", place, 0, kMost));
  record.new_tokens = GRACE_TRY(get_int(line, "new_tokens", place, 0, kMost));
  record.prefill_s = GRACE_TRY(get_number(line, "prefill_s", place));
  record.decode_s = GRACE_TRY(get_number(line, "decode_s", place));
  record.decode_steps = GRACE_TRY(get_int(line, "decode_steps", place, 0, kMost));
  const std::int64_t ranks = GRACE_TRY(get_int(line, "ranks", place, 1, 1024));
  steps = GRACE_TRY(get_int(line, "steps", place, 0, kMostParts));
  layers = GRACE_TRY(get_int(line, "layers", place, 1, 1024));
  if (ranks * steps * layers > 16 * kMostParts)
    return invalid_input(place + ": more steps than a record holds");
  record.steps.assign(static_cast<std::size_t>(ranks),
                      std::vector(static_cast<std::size_t>(steps),
                                  std::vector<LayerCounters>(static_cast<std::size_t>(layers))));
  return record;
}

}  // namespace

Status write_record(const std::filesystem::path& path, const RunRecord& record) {
  const std::size_t steps = record.steps.empty() ? 0 : record.steps[0].size();
  const std::size_t layers = steps > 0 ? record.steps[0][0].size() : 0;
  const Json head = {{"record", "run"},
                     {"model", record.model},
                     {"cluster", record.cluster},
                     {"transport", record.transport},
                     {"dispatch", record.dispatch},
                     {"strategy", record.strategy},
                     {"prompts", record.prompts},
                     {"prompt_tokens", record.prompt_tokens},
                     {"new_tokens", record.new_tokens},
                     {"prefill_s", record.prefill_s},
                     {"decode_s", record.decode_s},
                     {"decode_steps", record.decode_steps},
                     {"ranks", record.steps.size()},
                     {"steps", steps},
                     {"layers", layers}};
  std::string text = head.dump() + "\n";
  for (std::size_t step = 0; step < steps; ++step)
    for (std::size_t rank = 0; rank < record.steps.size(); ++rank)
      for (std::size_t layer = 0; layer < layers; ++layer) {
        const LayerCounters& one = record.steps[rank][step][layer];
        const Json line = {{"record", "layer"},
                           {"step", step},
                           {"rank", rank},
                           {"layer", layer},
                           {"tokens", one.tokens},
                           {"assignments", one.assignments},
                           {"dispatch", json_of(one.dispatch)},
                           {"combine", json_of(one.combine)},
                           {"gate_s", one.gate_s},
                           {"dispatch_s", one.dispatch_s},
                           {"experts_s", one.experts_s},
                           {"combine_s", one.combine_s},
                           {"wait_s", one.wait_s}};
        text += line.dump() + "\n";
      }
  return write_text_atomically(path, text);
}

Result<RunRecord> read_record(const std::filesystem::path& path) {
  const std::string text = GRACE_TRY(read_text(path));
  RunRecord record;
  std::int64_t steps = 0, layers = 0, number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string place = fmt::format("{}:{}", path.string(), ++number);
    const Json line = GRACE_TRY(parse_json(std::string_view(text).substr(begin, end - begin), place));
    begin = end + 1;
    if (number == 1) {
      record = GRACE_TRY(run_line(line, place, steps, layers));
      continue;
    }
    if (!line.is_object()) return invalid_input(place + ": not a line of a run record");
    const auto step = static_cast<std::size_t>(GRACE_TRY(get_int(line, "step", place, 0, steps - 1)));
    const auto rank = static_cast<std::size_t>(
        GRACE_TRY(get_int(line, "rank", place, 0, static_cast<std::int64_t>(record.steps.size()) - 1)));
    const auto layer = static_cast<std::size_t>(GRACE_TRY(get_int(line, "layer", place, 0, layers - 1)));
    record.steps[rank][step][layer] = GRACE_TRY(layer_counters(line, place));
  }
  if (number == 0) return invalid_input(path.string() + ": an empty run record");
  return record;
}

}  // namespace grace::app
