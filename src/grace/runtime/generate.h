// Text generation over an engine: static batches, greedy or seeded sampling, end of text; and scoring.
#pragma once

#include <cstdint>
#include <functional>
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

// By what share of the largest |logit| rounding can move the margin of two logits, to first order: 2 L eps.
// eps is by what share of its terms' sizes a layer's sum over K experts can differ between two ways of adding
// it: 2 (K-1) u with reduced results, u = 2^-24, none with exact ones; vectors that travel as bf16 add
// 2 * 2^-8, a half unit on each of two ways. L layers add their differences to the residual, whose size the
// bound takes for theirs, and both logits may move. Two texts of the same tokens so far, chosen greedily,
// that part at a margin within it are a near-tie: their next token is up to rounding.
double near_tie_bound(const ModelConfig& config, Combine combine, bool bf16_wire);

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
