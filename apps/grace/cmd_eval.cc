// grace eval: perplexity of a text, or logits for comparison with other implementations.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>

#include "context.h"
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

struct Outcome {
  double log_sum = 0;  // of perplexities, weighed by tokens
  std::int64_t tokens = 0;
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
    return Lists{GRACE_TRY(read_and_encode(tokenizer, flags.text))};
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
    const auto engine = GRACE_TRY(Engine::make(job.model, job.plan, job.cluster, transport, pool,
                                               {.dispatch = job.dispatch, .combine = job.combine}));
    Progress silent("");
    if (!flags.logits.empty()) {
      auto logits =
          GRACE_TRY(logits_of(*engine, transport, lists, keep, transport.rank() == 0 ? progress : silent));
      if (keep) outcome.logits = std::move(logits);
      return {};
    }
    for (const auto& ids : lists) {
      if (ids.size() < 2) continue;
      const ScoreResult score =
          GRACE_TRY(grace::score(*engine, transport, ids, window, kWindowsPerStep, report));
      if (!keep) continue;
      outcome.log_sum += std::log(score.perplexity) * static_cast<double>(score.tokens);
      outcome.tokens += score.tokens;
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
  if (outcome.tokens == 0) return invalid_input("eval: fewer than two tokens, nothing to score");
  const double perplexity = std::exp(outcome.log_sum / static_cast<double>(outcome.tokens));
  if (flags.json)
    print_json({{"perplexity", perplexity}, {"tokens", outcome.tokens}, {"context", window}});
  else
    print(fmt::format("perplexity {:.4f} over {} tokens, context {}\n", perplexity, outcome.tokens, window));
  return 0;
}

}  // namespace

void add_eval(CLI::App& app, Context& context) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("eval", "Perplexity of a text (JSON: perplexity, tokens, context), or logits.");
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
