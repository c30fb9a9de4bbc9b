#include "grace/runtime/generate.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "grace/runtime/sampler.h"

namespace grace {
namespace {

using Prompts = std::vector<std::vector<std::int32_t>>;

Status check_options(const GenerateOptions& options) {
  if (options.max_new_tokens < 0)
    return invalid_input("max_new_tokens " + std::to_string(options.max_new_tokens) + " is below 0");
  if (!(options.temperature >= 0))
    return invalid_input("temperature " + std::to_string(options.temperature) + " is below 0");
  if (!(options.top_p > 0 && options.top_p <= 1))
    return invalid_input("top_p " + std::to_string(options.top_p) + " is outside (0, 1]");
  return {};
}

Status check_prompts(const ModelConfig& config, const Prompts& prompts, const GenerateOptions& options) {
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    const Status status = check_prompt(config, prompts[p], options);
    if (!status.ok())
      return Error{status.error().kind, "prompt " + std::to_string(p) + ": " + status.error().message};
  }
  return {};
}

// One of this rank's prompts.
struct Sequence {
  std::size_t prompt;
  Sampler sampler;
  std::vector<std::int32_t> output;
  std::vector<TokenMargin> margins;  // as output
  bool done = false;
};

TokenMargin margin_of(std::span<const float> logits) {
  if (logits.size() < 2)
    return {std::numeric_limits<float>::infinity(), logits.empty() ? 0 : std::abs(logits[0]), kNoToken};
  TokenMargin found;
  std::size_t best = 0, second = 1;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    found.largest = std::max(found.largest, std::abs(logits[i]));
    if (logits[i] > logits[best]) {
      second = std::exchange(best, i);
    } else if (i != best && logits[i] > logits[second]) {
      second = i;
    }
  }
  found.margin = logits[best] - logits[second];
  found.second = static_cast<std::int32_t>(second);
  return found;
}

// A token as the ranks tell one another of it.
constexpr std::size_t kWordsPerToken = 4;  // id, second, margin, largest

void add_words(std::int32_t token, const TokenMargin& margin, std::vector<std::int32_t>& words) {
  words.insert(words.end(), {token, margin.second, std::bit_cast<std::int32_t>(margin.margin),
                             std::bit_cast<std::int32_t>(margin.largest)});
}

// The sequences of one rank, from prefill to the last token.
class Batch {
 public:
  Batch(Engine& engine, Transport& transport, const Prompts& prompts, const GenerateOptions& options)
      : engine_(engine), transport_(transport), prompts_(prompts), options_(options) {
    for (auto p = static_cast<std::size_t>(transport.rank()); p < prompts.size();
         p += static_cast<std::size_t>(transport.size())) {
      sequences_.push_back({p,
                            Sampler(options.temperature, options.top_p, options.seed, p),
                            {},
                            {},
                            options.max_new_tokens == 0});
    }
    engine_.reset(static_cast<int>(sequences_.size()));
  }

  // Collective: one more token for every sequence that is not done.
  Status step() {
    StepInput input;
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
      const Sequence& sequence = sequences_[s];
      if (sequence.done) continue;
      const std::vector<std::int32_t>& prompt = prompts_[sequence.prompt];
      input.sequences.push_back(static_cast<int>(s));
      if (sequence.output.empty()) {
        input.num_new.push_back(static_cast<int>(prompt.size()));
        input.token_ids.insert(input.token_ids.end(), prompt.begin(), prompt.end());
      } else {
        input.num_new.push_back(1);
        input.token_ids.push_back(sequence.output.back());
      }
    }
    std::vector<float> logits;
    Status status = engine_.step(input, false, logits);
    if (!status.ok()) return status;
    const auto vocab = static_cast<std::size_t>(engine_.config().vocab_size);
    for (std::size_t i = 0; i < input.sequences.size(); ++i)
      take(input.sequences[i], std::span<const float>(logits).subspan(i * vocab, vocab));
    return {};
  }

  // Collective: has any rank a sequence that goes on?
  Result<bool> goes_on() {
    const std::byte mine{std::ranges::any_of(sequences_, [](const Sequence& s) { return !s.done; })};
    const auto all = GRACE_TRY(transport_.all_gather({&mine, 1}));
    return std::ranges::any_of(all, [](const std::vector<std::byte>& theirs) {
      return !theirs.empty() && theirs[0] != std::byte{0};
    });
  }

  // Collective: every rank's outputs and margins, in the order of the prompts.
  Status gather(GenerateResult& result) {
    std::vector<std::int32_t> mine;
    for (const Sequence& sequence : sequences_) {
      mine.push_back(static_cast<std::int32_t>(sequence.output.size()));
      for (std::size_t i = 0; i < sequence.output.size(); ++i)
        add_words(sequence.output[i], sequence.margins[i], mine);
    }
    const auto all = GRACE_TRY(transport_.all_gather(std::as_bytes(std::span(mine))));
    result.outputs.resize(prompts_.size());
    result.margins.resize(prompts_.size());
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      std::vector<std::int32_t> theirs(all[rank].size() / sizeof(std::int32_t));
      if (!theirs.empty()) std::memcpy(theirs.data(), all[rank].data(), theirs.size() * sizeof(std::int32_t));
      std::size_t at = 0;
      for (std::size_t p = rank; p < prompts_.size(); p += all.size()) {
        const bool is_whole =
            at < theirs.size() && theirs[at] >= 0 &&
            static_cast<std::size_t>(theirs[at]) <= (theirs.size() - at - 1) / kWordsPerToken;
        if (!is_whole)
          return peer_lost("rank " + std::to_string(rank) + " sends no output for prompt " +
                           std::to_string(p));
        const auto count = static_cast<std::size_t>(theirs[at++]);
        for (std::size_t i = 0; i < count; ++i, at += kWordsPerToken) {
          result.outputs[p].push_back(theirs[at]);
          result.margins[p].push_back(
              {std::bit_cast<float>(theirs[at + 2]), std::bit_cast<float>(theirs[at + 3]), theirs[at + 1]});
        }
      }
    }
    return {};
  }

 private:
  void take(int slot, std::span<const float> logits) {
    Sequence& sequence = sequences_[static_cast<std::size_t>(slot)];
    const std::int32_t token = sequence.sampler.choose(logits);
    sequence.output.push_back(token);
    sequence.margins.push_back(margin_of(logits));
    const bool ended = !options_.ignore_eos && std::ranges::find(engine_.config().eos_token_ids, token) !=
                                                   engine_.config().eos_token_ids.end();
    sequence.done = ended || sequence.output.size() >= static_cast<std::size_t>(options_.max_new_tokens);
    if (sequence.done) engine_.release(slot);
  }

  Engine& engine_;
  Transport& transport_;
  const Prompts& prompts_;
  const GenerateOptions& options_;
  std::vector<Sequence> sequences_;
};

}  // namespace

Status check_prompt(const ModelConfig& config, std::span<const std::int32_t> ids,
                    const GenerateOptions& options) {
  if (ids.empty()) return invalid_input("it has no tokens, and needs at least 1");
  const auto positions = static_cast<std::int64_t>(ids.size()) + options.max_new_tokens;
  if (positions > config.max_positions)
    return invalid_input(std::to_string(ids.size()) + " tokens and " +
                         std::to_string(options.max_new_tokens) + " new ones are more than the model's " +
                         std::to_string(config.max_positions) + " positions");
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < config.vocab_size) continue;
    return invalid_input("token " + std::to_string(i) + ": id " + std::to_string(ids[i]) +
                         " is outside [0, " + std::to_string(config.vocab_size) + ")");
  }
  return {};
}

Result<GenerateResult> generate(Engine& engine, Transport& transport, const Prompts& prompts,
                                const GenerateOptions& options,
                                const std::function<void(std::int64_t, std::int64_t)>& progress) {
  Status valid = check_options(options);
  if (valid.ok()) valid = check_prompts(engine.config(), prompts, options);
  if (!valid.ok()) return std::move(valid).error();
  Batch batch(engine, transport, prompts, options);
  GenerateResult result;
  bool goes_on = options.max_new_tokens > 0 && !prompts.empty();
  for (std::int64_t steps = 0; goes_on; ++steps) {
    const auto start = std::chrono::steady_clock::now();
    Status status = batch.step();
    if (!status.ok()) return std::move(status).error();
    goes_on = GRACE_TRY(batch.goes_on());
    (steps == 0 ? result.prefill_s : result.decode_s) +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    result.decode_steps = steps;
    if (progress && transport.rank() == 0) progress(steps + 1, options.max_new_tokens);
  }
  Status gathered = batch.gather(result);
  if (!gathered.ok()) return std::move(gathered).error();
  return result;
}

}  // namespace grace
