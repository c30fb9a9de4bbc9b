// Text generation over an engine: static batches, greedy or seeded sampling, end of text; and scoring.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "grace/runtime/engine.h"

namespace grace {

struct GenerateOptions {
  int max_new_tokens = 64;
  bool ignore_eos = false;
  double temperature = 0;  // 0: greedy, ties to the lower id
  double top_p = 1;
  std::uint64_t seed =
      0;  // a sequence draws from its own stream, so that its text depends on neither rank nor batch
};

inline constexpr std::int32_t kNoToken = -1;
// How clear the choice of a new token was.
struct TokenMargin {
  float margin = 0;                // best logit less the second best; infinite where there is no second
  float largest = 0;               // largest |logit|
  std::int32_t second = kNoToken;  // id of the second best, ties to the lower one
};

struct GenerateResult {
  std::vector<std::vector<std::int32_t>>
      outputs;                                    // [prompts], in their order, on every rank; new tokens only
  std::vector<std::vector<TokenMargin>> margins;  // as outputs
  double prefill_s = 0;
  double decode_s = 0;
  std::int64_t decode_steps = 0;
};

// Collective. Prompts are dealt to ranks round-robin; all ranks pass the same ones. progress(done, total) is
// called on rank 0 after each step; may be empty. Errors: invalid_input for an empty prompt, an id outside
// the vocabulary, or more positions than the model has.
Result<GenerateResult> generate(Engine& engine, Transport& transport,
                                const std::vector<std::vector<std::int32_t>>& prompts,
                                const GenerateOptions& options,
                                const std::function<void(std::int64_t, std::int64_t)>& progress);

// Whether generate() takes the prompt. Errors: as it.
Status check_prompt(const ModelConfig& config, std::span<const std::int32_t> ids,
                    const GenerateOptions& options);

struct ScoreResult {
  double perplexity = 0;
  std::int64_t tokens = 0;  // scored
};
// Collective. Consecutive windows of `context` inputs, each input predicting the next token, so that every
// token but the first is scored once; windows are dealt round-robin, `batch_windows` of them a rank and step.
// Same bits for any rank count: the sum runs over tokens in order.
Result<ScoreResult> score(Engine& engine, Transport& transport, std::span<const std::int32_t> token_ids,
                          int context, int batch_windows,
                          const std::function<void(std::int64_t, std::int64_t)>& progress);

}  // namespace grace
