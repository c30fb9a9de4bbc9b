// grace eval: perplexity of a text, or logits for comparison with other implementations.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "context.h"
#include "grace/files/json_file.h"
#include "grace/runtime/generate.h"
#include "launch.h"
#include "progress.h"

namespace grace::app {
namespace {

constexpr int kWindowsPerStep = 8;

struct Flags {
  EngineFlags engine;
  std::string text, token_ids, logits;
  std::optional<int> context;
  bool json = false;
};

using Lists = std::vector<std::vector<std::int32_t>>;

// Surprise over lists, each weighed by its tokens.
struct Score {
  double log_sum = 0;
  std::int64_t tokens = 0;
  double perplexity() const { return std::exp(log_sum / static_cast<double>(tokens)); }
};

struct Outcome {
  Score score;
  std::optional<Score> free;               // of a lossy plan: with the model's own gate
  std::vector<std::vector<float>> logits;  // [lists][T * V]
};

// List i on rank i mod D; everyone's logits on every rank that keeps them.
Result<std::vector<std::vector<float>>> logits_of(Engine& engine, Transport& transport, const Lists& lists,
                                                  bool keep, Progress& progress) {
  std::vector<std::vector<float>> all;
  const auto ranks = static_cast<std::size_t>(transport.size()),
             rank = static_cast<std::size_t>(transport.rank());
  for (std::size_t begin = 0; begin < lists.size(); begin += ranks) {
    StepInput input;
    if (begin + rank < lists.size()) {
      const auto& ids = lists[begin + rank];
      input = {{0}, ids, {static_cast<int>(ids.size())}};
    }
    engine.reset(static_cast<int>(input.sequences.size()));
    std::vector<float> mine;
    GRACE_TRY(engine.step(input, true, mine));
    if (input.sequences.empty()) mine.clear();
    const auto gathered = GRACE_TRY(transport.all_gather(std::as_bytes(std::span(mine))));
    for (std::size_t r = 0; keep && r < ranks && begin + r < lists.size(); ++r) {
      std::vector<float>& one = all.emplace_back(gathered[r].size() / sizeof(float));
      std::memcpy(one.data(), gathered[r].data(), gathered[r].size());
    }
    progress(static_cast<std::int64_t>(begin + ranks), static_cast<std::int64_t>(lists.size()));
  }
  return all;
}

Result<Lists> lists_of(const Flags& flags, const ModelConfig& config) {
  if (flags.text.empty() == flags.token_ids.empty())
    return invalid_input("eval: give either --text FILE or --token-ids FILE");
  if (!flags.logits.empty() && flags.token_ids.empty())
    return invalid_input("eval: --logits needs --token-ids");
  if (flags.token_ids.empty()) {
    const Tokenizer tokenizer = GRACE_TRY(load_tokenizer(flags.engine.model));
    std::vector<std::int32_t> ids = GRACE_TRY(read_and_encode(tokenizer, flags.text));
    return Lists{std::move(ids)};
  }
  Lists lists = GRACE_TRY(read_token_lists(flags.token_ids, config.vocab_size));
  for (std::size_t i = 0; i < lists.size() && !flags.logits.empty(); ++i)
    if (lists[i].empty() || lists[i].size() > static_cast<std::size_t>(config.max_positions))
      return invalid_input(fmt::format("{}: list {} has {} tokens, outside [1, {}]", flags.token_ids, i,
                                       lists[i].size(), config.max_positions));
  return lists;
}

Status write_logits(const std::string& path, const std::vector<std::vector<float>>& logits,
                    const Lists& lists, int vocab_size) {
  std::map<std::string, TensorView, std::less<>> tensors;
  for (std::size_t i = 0; i < logits.size(); ++i)
    tensors[fmt::format("logits_{}", i)] = {Dtype::kF32,
                                            {static_cast<std::int64_t>(lists[i].size()), vocab_size},
                                            std::as_bytes(std::span(logits[i]))};
  return write_safetensors(path, tensors, {{"format", "pt"}});
}

// Collective.
Result<Score> score_of(const Job& job, const Plan& plan, const Lists& lists, int window, Transport& transport,
                       ThreadPool& pool, const std::function<void(std::int64_t, std::int64_t)>& report) {
  const auto engine =
      GRACE_TRY(Engine::make(job.model, plan, job.cluster, transport, pool, engine_options(job)));
  Score sum;
  for (const auto& ids : lists) {
    if (ids.size() < 2) continue;
    const ScoreResult score =
        GRACE_TRY(grace::score(*engine, transport, ids, window, kWindowsPerStep, report));
    sum.log_sum += std::log(score.perplexity) * static_cast<double>(score.tokens);
    sum.tokens += score.tokens;
  }
  return sum;
}

// The same placement with the model's own gate.
Plan without_partners(Plan plan) {
  for (LayerPlan& layer : plan.layers) layer.partners_of_expert.clear();
  return plan;
}

void print_score(const Outcome& outcome, int window, bool json) {
  const double perplexity = outcome.score.perplexity();
  Json value = {{"perplexity", perplexity}, {"tokens", outcome.score.tokens}, {"context", window}};
  std::string text =
      fmt::format("perplexity {:.4f} over {} tokens, context {}\n", perplexity, outcome.score.tokens, window);
  if (outcome.free) {
    const double free = outcome.free->perplexity(), loss = perplexity / free - 1;
    value.update({{"lossy", true}, {"free_perplexity", free}, {"perplexity_loss", loss}});
    text += fmt::format("The plan is lossy: {:.4f} with the model's own gate, so it costs {:+.2f} %\n", free,
                        100 * loss);
  }
  if (json)
    print_json(value);
  else
    print(text);
}

Result<int> eval(const Flags& flags, const Context& context) {
  const Job job = GRACE_TRY(prepare_job(flags.engine));
  const int window = GRACE_TRY(context_of(flags.context, job.config.max_positions));
  const Lists lists = GRACE_TRY(lists_of(flags, job.config));
  Ranks ranks = GRACE_TRY(Ranks::make(job, context));
  Outcome outcome;
  Progress progress("eval");
  const auto report = [&](std::int64_t done, std::int64_t total) { progress(done, total); };
  const Status ran = ranks.run([&](Transport& transport, ThreadPool& pool) -> Status {
    const bool keep = ranks.keeps(transport);
    if (!flags.logits.empty()) {
      const auto engine =
          GRACE_TRY(Engine::make(job.model, job.plan, job.cluster, transport, pool, engine_options(job)));
      Progress silent("");
      auto logits =
          GRACE_TRY(logits_of(*engine, transport, lists, keep, transport.rank() == 0 ? progress : silent));
      if (keep) outcome.logits = std::move(logits);
      return {};
    }
    const Score score = GRACE_TRY(score_of(job, job.plan, lists, window, transport, pool, report));
    std::optional<Score> free;
    if (job.plan.is_lossy())
      free = GRACE_TRY(score_of(job, without_partners(job.plan), lists, window, transport, pool, report));
    if (keep) {
      outcome.score = score;
      outcome.free = free;
    }
    return {};
  });
  if (!ran.ok()) return ran.error();
  if (!ranks.speaks()) return 0;
  if (!flags.logits.empty()) {
    GRACE_TRY(write_logits(flags.logits, outcome.logits, lists, job.config.vocab_size));
    if (flags.json)
      print_json({{"logits", flags.logits}, {"sequences", lists.size()}});
    else
      print(fmt::format("{}: logits of {} sequences\n", flags.logits, lists.size()));
    return 0;
  }
  if (outcome.score.tokens == 0) return invalid_input("eval: fewer than two tokens, nothing to score");
  print_score(outcome, window, flags.json);
  return 0;
}

}  // namespace

void add_eval(CLI::App& app, Context& context) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "eval",
      "Perplexity of a text (JSON: perplexity, tokens, context), or logits; of a lossy plan what it costs.");
  add_engine_flags(*command, flags->engine);
  command->add_option("--text", flags->text, "a UTF-8 text file");
  command->add_option("--token-ids", flags->token_ids, "a JSON list of lists of token ids, in place of text");
  command->add_option("--logits", flags->logits,
                      "write logits_0, logits_1, .. [T, V] f32 of --token-ids to this safetensors file");
  command->add_option("--context", flags->context, "inputs of a window (default 256)");
  command->add_flag("--json", flags->json, "one JSON value");
  command->footer("Example:\n  grace eval models/demo --text models/demo/heldout/judge/en.txt --json");
  command->callback(
      [flags, &context] { context.action = [flags, &context] { return eval(*flags, context); }; });
}

}  // namespace grace::app
