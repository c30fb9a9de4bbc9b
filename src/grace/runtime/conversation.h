// One sequence that is read and answered in turns.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "grace/runtime/generate.h"
#include "grace/runtime/sampler.h"

namespace grace {

// The sequence is rank 0's; the others compute their experts for it. What the cache holds of it is not read
// again. Thread-compatible.
class Conversation {
 public:
  // engine and transport must outlive it; the engine serves nobody else meanwhile. A sampled reply goes on in
  // the stream of the reply before.
  Conversation(Engine& engine, Transport& transport, const GenerateOptions& options);

  // Collective. ids, of rank 0: all that was said so far, what was replied and perhaps changed included. The
  // reply's tokens, on rank 0; the same as generate()'s for the prompt `ids`, where tokens are not sampled.
  // said, on rank 0, hears them all after each new one; may be empty, and ends the reply by returning false.
  // Errors: those of generate(), on every rank.
  Result<std::vector<std::int32_t>> reply(std::span<const std::int32_t> ids,
                                          const std::function<bool(std::span<const std::int32_t>)>& said);

 private:
  void resume(std::span<const std::int32_t> ids);
  Status step();
  bool goes_on(const std::vector<std::int32_t>& reply) const;

  Engine& engine_;
  Transport& transport_;
  GenerateOptions options_;
  Sampler sampler_;
  std::vector<std::int32_t> cached_;  // what the engine has read of the sequence
  StepInput input_;
  std::vector<float> logits_;
};

}  // namespace grace
