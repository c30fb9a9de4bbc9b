// grace profile: runs a text through the model and keeps how its tokens were routed.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "context.h"
#include "launch.h"
#include "profile.h"
#include "progress.h"

namespace grace::app {
namespace {

struct Flags {
  EngineFlags engine;
  std::string text, token_ids, out, phase = "prefill";
  std::optional<int> context;
  int max_new_tokens = 0;
  bool json = false;
};

Result<std::vector<std::vector<std::int32_t>>> sequences_of(const Flags& flags, const ModelConfig& config) {
  if (flags.text.empty() == flags.token_ids.empty())
    return invalid_input("profile: give either --text FILE or --token-ids FILE");
  const int window = GRACE_TRY(context_of(flags.context, config.max_positions));
  if (flags.token_ids.empty()) {
    const Tokenizer tokenizer = GRACE_TRY(load_tokenizer(flags.engine.model));
    return windows_of(GRACE_TRY(read_and_encode(tokenizer, flags.text)), window);
  }
  auto lists = GRACE_TRY(read_token_lists(flags.token_ids, config.vocab_size));
  for (std::size_t i = 0; i < lists.size(); ++i)
    if (lists[i].empty()) return invalid_input(fmt::format("{}: list {} is empty", flags.token_ids, i));
  return lists;
}

Result<int> profile(const Flags& flags, const Context& context) {
  const Job job = GRACE_TRY(prepare_job(flags.engine));
  ProfileOptions options;
  options.phase = GRACE_TRY(parse_phase(flags.phase));
  if (flags.max_new_tokens < 0)
    return invalid_input(fmt::format("--max-new-tokens: {} is negative", flags.max_new_tokens));
  options.max_new_tokens = flags.max_new_tokens;
  options.source = flags.text.empty() ? flags.token_ids : flags.text;
  const auto sequences = GRACE_TRY(sequences_of(flags, job.config));
  Ranks ranks = GRACE_TRY(Ranks::make(job, context));
  const Trace trace = GRACE_TRY(profile_on_ranks(ranks, job, sequences, options));
  if (!ranks.speaks()) return 0;
  GRACE_TRY(write_trace(flags.out, trace));
  if (flags.json)
    print_json({{"trace", flags.out},
                {"tokens", trace.num_tokens()},
                {"sequences", trace.num_sequences()},
                {"moe_layers", trace.num_moe_layers()},
                {"num_experts", trace.num_experts},
                {"phase", flags.phase},
                {"hash", hash_of(trace)}});
  else
    print(fmt::format("{}: {} tokens in {} sequences, {} MoE layers, {}\n", flags.out, trace.num_tokens(),
                      trace.num_sequences(), trace.num_moe_layers(), flags.phase));
  return 0;
}

}  // namespace

void add_profile(CLI::App& app, Context& context) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("profile", "Runs a text through the model and writes its routing as a trace.");
  add_engine_flags(*command, flags->engine);
  command->add_option("--text", flags->text, "a UTF-8 text file, cut into windows of --context tokens");
  command->add_option("--token-ids", flags->token_ids,
                      "a JSON list of lists of token ids, each a sequence, in place of text");
  command->add_option("--out", flags->out, "the trace file")->required();
  command->add_option(
      "--phase", flags->phase,
      "prefill (default); decode: a greedy continuation of each window's first half; or both");
  command->add_option("--context", flags->context, "tokens of a window (default 256)");
  command->add_option("--max-new-tokens", flags->max_new_tokens,
                      "tokens to continue by (default: as many as the second half has)");
  command->add_flag("--json", flags->json, "one JSON value");
  command->footer(
      "Example:\n  grace profile models/demo --text models/demo/heldout/profile/en.txt --out out/en.trace");
  command->callback(
      [flags, &context] { context.action = [flags, &context] { return profile(*flags, context); }; });
}

}  // namespace grace::app
