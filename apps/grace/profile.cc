#include "profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "progress.h"

namespace grace::app {
namespace {

// How one sequence is run: the first `prompt` tokens at once, then `generated` one by one.
struct Shape {
  std::size_t prompt = 0;
  std::size_t generated = 0;
  std::size_t skipped = 0;  // rows left out of the trace, from the front
  std::size_t rows() const { return prompt + generated - skipped; }
};

Shape shape_of(std::size_t length, const ProfileOptions& options) {
  if (options.phase == Phase::kPrefill) return {length, 0, 0};
  const std::size_t prompt = std::max<std::size_t>(1, length / 2);
  const std::size_t generated =
      options.max_new_tokens > 0 ? static_cast<std::size_t>(options.max_new_tokens) : length - prompt;
  return {prompt, generated, options.phase == Phase::kDecode ? prompt : 0};
}

// The rows of one rank's sequences, one after another.
struct Rows {
  std::vector<std::uint16_t> ids;
  std::vector<float> weights;
  std::vector<std::int32_t> tokens;
};

template <typename T>
void append_bytes(const std::vector<T>& values, std::vector<std::byte>& out) {
  const auto bytes = std::as_bytes(std::span(values));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

template <typename T>
std::vector<T> take_bytes(std::span<const std::byte>& from, std::size_t count) {
  std::vector<T> values(count);
  GRACE_CHECK(from.size() >= count * sizeof(T), "a rank sent fewer trace rows than its sequences have");
  if (count > 0) std::memcpy(values.data(), from.data(), count * sizeof(T));
  from = from.subspan(count * sizeof(T));
  return values;
}

std::int32_t argmax(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
}

// Runs this rank's sequences of one round through the engine; `steps` decode steps on every rank. Returns
// each one's tokens.
Result<std::vector<std::vector<std::int32_t>>> run_round(Engine& engine,
                                                         const std::vector<std::vector<std::int32_t>>& mine,
                                                         const std::vector<Shape>& shapes,
                                                         std::size_t steps) {
  engine.reset(static_cast<int>(mine.size()));
  std::vector<std::vector<std::int32_t>> ran;
  StepInput input;
  for (std::size_t s = 0; s < mine.size(); ++s) {
    ran.emplace_back(mine[s].begin(), mine[s].begin() + static_cast<std::ptrdiff_t>(shapes[s].prompt));
    input.sequences.push_back(static_cast<int>(s));
    input.num_new.push_back(static_cast<int>(shapes[s].prompt));
    input.token_ids.insert(input.token_ids.end(), ran[s].begin(), ran[s].end());
  }
  std::vector<float> logits;
  GRACE_TRY(engine.step(input, false, logits));
  const auto vocab = static_cast<std::size_t>(engine.config().vocab_size);
  for (std::size_t step = 0; step < steps; ++step) {
    StepInput next;
    for (std::size_t row = 0; row < input.sequences.size(); ++row) {
      const int s = input.sequences[row];
      if (step >= shapes[static_cast<std::size_t>(s)].generated) continue;
      next.sequences.push_back(s);
      next.num_new.push_back(1);
      next.token_ids.push_back(argmax(std::span(logits).subspan(row * vocab, vocab)));
      ran[static_cast<std::size_t>(s)].push_back(next.token_ids.back());
    }
    GRACE_TRY(engine.step(next, false, logits));
    input = std::move(next);
  }
  return ran;
}

// Appends the rows that the trace keeps of one round. `part` holds all rows of its sequences.
void keep_rows(const Trace& part, const std::vector<std::vector<std::int32_t>>& ran,
               const std::vector<Shape>& shapes, Rows& rows) {
  const std::size_t per_token =
      static_cast<std::size_t>(part.num_moe_layers()) * static_cast<std::size_t>(part.experts_per_token);
  GRACE_CHECK(part.num_sequences() == static_cast<int>(ran.size()) || ran.empty(),
              "the engine recorded other sequences than it was given");
  for (std::size_t s = 0; s < ran.size(); ++s) {
    const auto begin = static_cast<std::size_t>(part.sequence_offsets[s]) + shapes[s].skipped;
    const auto end = static_cast<std::size_t>(part.sequence_offsets[s + 1]);
    GRACE_CHECK(end - begin == shapes[s].rows(),
                "the engine recorded another number of tokens than it was given");
    const auto slice = [&](const auto& all, auto& out) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin * per_token);
      out.insert(out.end(), first, first + static_cast<std::ptrdiff_t>((end - begin) * per_token));
    };
    slice(part.topk_ids, rows.ids);
    if (!part.topk_weights.empty()) slice(part.topk_weights, rows.weights);
    rows.tokens.insert(rows.tokens.end(), ran[s].begin() + static_cast<std::ptrdiff_t>(shapes[s].skipped),
                       ran[s].end());
  }
}

// Everyone's rows, put back into the order of the sequences. shapes: all sequences', dealt round-robin.
Result<Trace> gather(Trace trace, Transport& transport, const Rows& mine, const std::vector<Shape>& shapes) {
  std::vector<std::byte> packed;
  append_bytes(mine.ids, packed);
  append_bytes(mine.weights, packed);
  append_bytes(mine.tokens, packed);
  const std::vector<std::vector<std::byte>> all = GRACE_TRY(transport.all_gather(packed));
  const std::size_t ranks = all.size();
  const std::size_t per_token =
      static_cast<std::size_t>(trace.num_moe_layers()) * static_cast<std::size_t>(trace.experts_per_token);
  std::vector<Rows> of_rank(ranks);
  std::vector<std::size_t> at(ranks, 0);
  for (std::size_t r = 0; r < ranks; ++r) {
    std::size_t rows = 0;
    for (std::size_t s = r; s < shapes.size(); s += ranks) rows += shapes[s].rows();
    std::span<const std::byte> bytes = all[r];
    const bool weighed = bytes.size() > rows * (per_token * sizeof(std::uint16_t) + sizeof(std::int32_t));
    of_rank[r].ids = take_bytes<std::uint16_t>(bytes, rows * per_token);
    if (weighed) of_rank[r].weights = take_bytes<float>(bytes, rows * per_token);
    of_rank[r].tokens = take_bytes<std::int32_t>(bytes, rows);
  }
  trace.sequence_offsets = {0};
  for (std::size_t s = 0; s < shapes.size(); ++s) {
    const Rows& from = of_rank[s % ranks];
    const auto append = [&](const auto& values, auto& out, std::size_t width) {
      const auto first = values.begin() + static_cast<std::ptrdiff_t>(at[s % ranks] * width);
      out.insert(out.end(), first, first + static_cast<std::ptrdiff_t>(shapes[s].rows() * width));
    };
    append(from.ids, trace.topk_ids, per_token);
    if (!from.weights.empty()) append(from.weights, trace.topk_weights, per_token);
    append(from.tokens, trace.token_ids, 1);
    at[s % ranks] += shapes[s].rows();
    trace.sequence_offsets.push_back(trace.sequence_offsets.back() +
                                     static_cast<std::int64_t>(shapes[s].rows()));
    if (trace.phase == Phase::kMixed)
      trace.prompt_lengths.push_back(static_cast<std::int64_t>(shapes[s].prompt));
  }
  return trace;
}

}  // namespace

Result<Phase> parse_phase(const std::string& name) {
  if (name == "prefill") return Phase::kPrefill;
  if (name == "decode") return Phase::kDecode;
  if (name == "both") return Phase::kMixed;
  return invalid_input(fmt::format("--phase: '{}' is neither prefill, decode nor both", name));
}

Result<Trace> profile_sequences(Engine& engine, Transport& transport,
                                const std::vector<std::vector<std::int32_t>>& sequences,
                                const ProfileOptions& options,
                                const std::function<void(std::int64_t, std::int64_t)>& progress) {
  std::vector<std::vector<std::int32_t>> used;
  std::vector<Shape> shapes;
  for (const auto& sequence : sequences) {
    const Shape shape = shape_of(sequence.size(), options);
    const auto length = static_cast<std::int64_t>(shape.prompt + shape.generated);
    if (length > engine.config().max_positions)
      return invalid_input(fmt::format("a sequence of {} tokens is longer than the model's {} positions",
                                       length, engine.config().max_positions));
    if (shape.rows() == 0) continue;  // a lone token has nothing to continue
    used.push_back(sequence);
    shapes.push_back(shape);
  }
  if (used.empty()) return invalid_input("nothing to profile: every sequence is shorter than two tokens");
  Trace trace;
  trace.model = engine.config().name;
  trace.source = options.source;
  trace.num_experts = engine.config().num_experts;
  trace.experts_per_token = engine.config().experts_per_token;
  trace.decoder_layers = engine.config().moe_layers;
  trace.phase = options.phase;
  const auto rank = static_cast<std::size_t>(transport.rank()),
             ranks = static_cast<std::size_t>(transport.size());
  const std::size_t round_size = ranks * static_cast<std::size_t>(options.sequences_per_rank);
  Rows rows;
  for (std::size_t begin = 0; begin < used.size(); begin += round_size) {
    const std::size_t end = std::min(begin + round_size, used.size());
    std::vector<std::vector<std::int32_t>> mine;
    std::vector<Shape> my_shapes;
    std::size_t steps = 0;
    for (std::size_t s = begin; s < end; ++s) {
      steps = std::max(steps, shapes[s].generated);
      if (s % ranks != rank) continue;
      mine.push_back(used[s]);
      my_shapes.push_back(shapes[s]);
    }
    const auto ran = GRACE_TRY(run_round(engine, mine, my_shapes, steps));
    keep_rows(engine.take_trace(), ran, my_shapes, rows);
    if (progress) progress(static_cast<std::int64_t>(end), static_cast<std::int64_t>(used.size()));
  }
  return gather(std::move(trace), transport, rows, shapes);
}

Result<Trace> profile_on_ranks(Ranks& ranks, const Job& job,
                               const std::vector<std::vector<std::int32_t>>& sequences,
                               const ProfileOptions& options) {
  Trace trace;
  Progress progress("profile");
  const Status ran = ranks.run([&](Transport& transport, ThreadPool& pool) -> Status {
    EngineOptions how = engine_options(job);
    how.record_trace = true;
    const auto engine = GRACE_TRY(Engine::make(job.model, job.plan, job.cluster, transport, pool, how));
    std::function<void(std::int64_t, std::int64_t)> report;
    if (transport.rank() == 0) report = [&](std::int64_t done, std::int64_t total) { progress(done, total); };
    Trace made = GRACE_TRY(profile_sequences(*engine, transport, sequences, options, report));
    if (ranks.keeps(transport)) trace = std::move(made);
    return {};
  });
  if (!ran.ok()) return ran.error();
  return trace;
}

}  // namespace grace::app
