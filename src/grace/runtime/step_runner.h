// The ways in which an engine's layers can be run, and the one that the present step goes.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "grace/runtime/layer_runner.h"
#include "grace/runtime/scratch.h"
#include "grace/runtime/step_choice.h"

namespace grace {

// Serves all layers of an engine: begin a step, then run each layer. Thread-compatible; not moved.
class StepRunner {
 public:
  // context: the engine's own, with its options' dispatch; must outlive it. Collective, as Transport::open.
  StepRunner(const RankContext& context, const EngineOptions& options);
  StepRunner(const StepRunner&) = delete;
  StepRunner& operator=(const StepRunner&) = delete;

  // Collective. tokens: this rank's in the step. Errors: the transport's.
  Status begin(std::size_t tokens);
  // A layer of it, as LayerRunner::run.
  Status run(const RoutedTokens& tokens, std::span<float> x, const LayerExperts& experts, bool overlap,
             std::span<float> h, LayerCounters& counters);

  // What its layers use, one after the other, before they run.
  struct Memory {
    Scratch normed, logits;
    std::vector<std::int32_t> devices;
  };
  Memory& memory() { return memory_; }

 private:
  struct Way {
    Way(const RankContext& engine, Dispatch dispatch, std::size_t parts);
    RankContext context;
    LayerRunner runner;
  };
  std::vector<Dispatch> dispatches_;
  int parts_;  // 0: to be chosen
  StepChooser chooser_;
  std::vector<std::unique_ptr<Way>> ways_;  // of each dispatch
  StepChoice choice_;
  Memory memory_;
};

}  // namespace grace
