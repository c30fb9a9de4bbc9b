// grace run: generates text with a plan over the ranks of a cluster.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <utility>

#include "chat_prompts.h"
#include "chat_session.h"
#include "context.h"
#include "grace/files/mapped_file.h"
#include "launch.h"
#include "memory.h"
#include "progress.h"
#include "record.h"
#include "recorded_run.h"
#include "run_timeline.h"

namespace grace::app {
namespace {

struct Flags {
  EngineFlags engine;
  std::vector<std::string> prompt;
  std::string prompts, token_ids, record, timeline;
  ChatFlags chat;
  GenerateOptions generate;
  bool json = false;
};

struct Inputs {
  std::vector<std::string> texts;  // empty with token ids
  std::vector<std::vector<std::int32_t>> ids;
};

Result<Inputs> inputs_of(const Flags& flags, const ModelConfig& config) {
  GRACE_TRY(check_chat_flags(flags.chat));
  const bool by_ids = !flags.token_ids.empty();
  const bool by_messages = !flags.chat.messages.empty();
  const int ways = (flags.prompt.empty() ? 0 : 1) + (flags.prompts.empty() ? 0 : 1) + (by_ids ? 1 : 0) +
                   (by_messages ? 1 : 0);
  if (flags.chat.chat && (ways != 1 || by_ids))
    return invalid_input(
        "run: with --chat give one of --prompt TEXT, --prompts FILE.jsonl, --messages FILE, or none");
  if (ways != 1)
    return invalid_input("run: give one of --prompt TEXT, --prompts FILE.jsonl, --token-ids FILE");
  Inputs inputs;
  if (by_ids) {
    inputs.ids = GRACE_TRY(read_token_lists(flags.token_ids, config.vocab_size));
    return inputs;
  }
  inputs.texts = flags.prompt;
  if (!flags.prompts.empty())
    for (const Prompt& prompt : GRACE_TRY(read_prompts(flags.prompts))) inputs.texts.push_back(prompt.text);
  if (flags.chat.chat) inputs.texts = GRACE_TRY(chat_texts(flags.chat, flags.engine.model, inputs.texts));
  const Tokenizer tokenizer = GRACE_TRY(load_tokenizer(flags.engine.model));
  for (std::size_t i = 0; i < inputs.texts.size(); ++i) {
    Result<std::vector<std::int32_t>> ids = tokenizer.encode(inputs.texts[i]);
    if (!ids.ok()) return Error{ids.error().kind, fmt::format("prompt {}: {}", i, ids.error().message)};
    inputs.ids.push_back(std::move(ids).value());
  }
  return inputs;
}

Status check_options(const GenerateOptions& options) {
  if (options.max_new_tokens < 1)
    return invalid_input(fmt::format("--max-new-tokens: {} is less than 1", options.max_new_tokens));
  if (!(options.temperature >= 0))
    return invalid_input(fmt::format("--temperature: {} is negative", options.temperature));
  if (!(options.top_p > 0 && options.top_p <= 1))
    return invalid_input(fmt::format("--top-p: {} is outside (0, 1]", options.top_p));
  return {};
}

Status print_outputs(const Flags& flags, const Inputs& inputs,
                     const std::vector<std::vector<std::int32_t>>& outputs) {
  std::vector<std::string> texts;
  if (!inputs.texts.empty()) {
    const Tokenizer tokenizer = GRACE_TRY(load_tokenizer(flags.engine.model));
    for (const auto& ids : outputs) texts.push_back(GRACE_TRY(tokenizer.decode(ids, true)));
  }
  Json list = Json::array();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    list.push_back({{"token_ids", outputs[i]}, {"text", texts.empty() ? Json(nullptr) : Json(texts[i])}});
    if (flags.json) continue;
    if (outputs.size() > 1) print(fmt::format("{}--- {}\n", i > 0 ? "\n" : "", i));
    if (texts.empty()) {
      print(Json(outputs[i]).dump() + "\n");
    } else {  // a chat's reply stands alone
      print((flags.chat.chat ? std::string() : inputs.texts[i]) + texts[i] + "\n");
    }
  }
  if (flags.json) print(Json{{"outputs", list}}.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  return {};
}

Status write_timeline(const std::string& path, const RunRecord& record) {
  report::TraceEvents events;
  add_run_spans(record, events);
  return write_text_atomically(path, report::chrome_trace(events));
}

// Of the rank that serves most; prompts are dealt to the ranks in turn.
std::int64_t cached_tokens_of(const std::vector<std::vector<std::int32_t>>& prompts,
                              const GenerateOptions& generate, const Cluster& cluster) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(cluster.num_devices()), 0);
  for (std::size_t p = 0; p < prompts.size(); ++p)
    tokens[p % tokens.size()] += static_cast<std::int64_t>(prompts[p].size()) + generate.max_new_tokens;
  return *std::ranges::max_element(tokens);
}

// Whether messages are to be read as they are typed.
bool is_in_turns(const Flags& flags) {
  return flags.chat.chat && flags.prompt.empty() && flags.prompts.empty() && flags.token_ids.empty() &&
         flags.chat.messages.empty();
}

Status run_in_turns(const Flags& flags, const Job& job, const GenerateOptions& options,
                    const Context& context) {
  GRACE_TRY(check_chat_flags(flags.chat));
  for (const auto& [given, name] :
       {std::pair(flags.json, "--json"), std::pair(!flags.record.empty(), "--record"),
        std::pair(!flags.timeline.empty(), "--timeline")})
    if (given) return invalid_input(fmt::format("run: {} with --chat needs a prompt", name));
  return chat_in_turns(job, flags.chat, options, context);
}

Result<int> run(const Flags& flags, const Context& context) {
  GRACE_TRY(check_options(flags.generate));
  const Job job = GRACE_TRY(prepare_job(flags.engine));
  GenerateOptions options = flags.generate;
  options.seed = job.seed;
  if (is_in_turns(flags)) {
    GRACE_TRY(run_in_turns(flags, job, options, context));
    return 0;
  }
  const Inputs inputs = GRACE_TRY(inputs_of(flags, job.config));
  const std::int64_t cached = cached_tokens_of(inputs.ids, flags.generate, job.cluster);
  GRACE_TRY(check_memory(job, job.plan, cached));
  say_memory(job, job.plan, cached);
  Ranks ranks = GRACE_TRY(Ranks::make(job, context));
  Progress progress("run");
  const RecordedRun run = GRACE_TRY(
      run_recorded(ranks, job,
                   {.plan = job.plan,
                    .prompts = inputs.ids,
                    .generate = options,
                    .spans = !flags.timeline.empty(),
                    .progress = [&](std::int64_t done, std::int64_t total) { progress(done, total); }}));
  if (!ranks.speaks()) return 0;
  if (!flags.record.empty()) GRACE_TRY(write_record(flags.record, run.record));
  if (!flags.timeline.empty()) GRACE_TRY(write_timeline(flags.timeline, run.record));
  GRACE_TRY(print_outputs(flags, inputs, run.outputs));
  return 0;
}

}  // namespace

void add_run(CLI::App& app, Context& context) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "run", "Generates text (JSON: outputs of token_ids and text, in the order of the prompts).");
  add_engine_flags(*command, flags->engine);
  command->add_option("--prompt", flags->prompt, "a prompt; may be given several times")
      ->allow_extra_args(false);
  command->add_option("--prompts", flags->prompts,
                      "a file of prompts, one JSON string or object with `text` a line");
  command->add_option("--token-ids", flags->token_ids,
                      "a JSON list of lists of token ids, in place of prompts");
  add_chat_flags(*command, flags->chat);
  command->add_option("--max-new-tokens", flags->generate.max_new_tokens,
                      "tokens to generate at most (default 64)");
  command->add_flag("--ignore-eos", flags->generate.ignore_eos, "go on after the end of text");
  command->add_option("--temperature", flags->generate.temperature, "0, the default, is greedy");
  command->add_option("--top-p", flags->generate.top_p,
                      "sample from the likeliest tokens of this mass (default 1)");
  command->add_option("--record", flags->record,
                      "write what happened, step by step, as a run record (JSON lines)");
  command->add_option("--timeline", flags->timeline,
                      "write what each rank did and when, for Perfetto (Chrome trace events)");
  command->add_flag("--json", flags->json, "one JSON value");
  command->footer(
      "Examples:\n  grace run models/demo --prompt \"In the beginning\" --cluster 2x2 --max-new-tokens 32\n"
      "  grace run models/demo --prompt \"The package\" --cluster 2x2 --record out/run.jsonl --timeline "
      "out/run.trace.json\n"
      "  grace run MODEL --chat --system \"Be brief.\" --prompt \"What is a plan?\" --chat-variable "
      "enable_thinking=false\n  grace run MODEL --chat   # reads messages as they are typed");
  command->callback(
      [flags, &context] { context.action = [flags, &context] { return run(*flags, context); }; });
}

}  // namespace grace::app
