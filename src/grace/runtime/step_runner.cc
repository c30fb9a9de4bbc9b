#include "grace/runtime/step_runner.h"

#include <algorithm>

namespace grace {
namespace {

// Only per_device and two_stage have a price to choose by; what is padded, or timed by itself, goes whole.
int parts_of(const EngineOptions& options) {
  const bool is_priced = options.choose_dispatch || options.dispatch == Dispatch::kPerDevice ||
                         options.dispatch == Dispatch::kTwoStage;
  if (options.aligned || options.dispatch == Dispatch::kPadded) return 1;
  return options.parts == 0 && !is_priced ? 1 : options.parts;
}

}  // namespace

StepRunner::Way::Way(const RankContext& engine, Dispatch dispatch, std::size_t parts)
    : context{engine.config, engine.cluster, engine.transport, engine.pool,       dispatch,    engine.combine,
              engine.wire,   engine.overlap, engine.aligned,   engine.arithmetic, engine.spans},
      runner(context, parts) {}

StepRunner::StepRunner(const RankContext& context, const EngineOptions& options)
    : dispatches_(options.choose_dispatch ? std::vector{Dispatch::kPerDevice, Dispatch::kTwoStage}
                                          : std::vector{options.dispatch}),
      parts_(parts_of(options)),
      chooser_(context.config, context.cluster, context.transport, dispatches_, parts_, options.combine,
               options.wire) {
  for (const Dispatch dispatch : dispatches_)
    ways_.push_back(
        std::make_unique<Way>(context, dispatch, parts_ == 0 ? 2 : static_cast<std::size_t>(parts_)));
}

Status StepRunner::begin(std::size_t tokens) {
  choice_ = GRACE_TRY(chooser_.choose(tokens));
  return {};
}

Status StepRunner::run(const RoutedTokens& tokens, std::span<float> x, const LayerExperts& experts,
                       bool overlap, std::span<float> h, LayerCounters& counters) {
  chooser_.saw(tokens.device_of_choice);
  const auto way = std::ranges::find(dispatches_, choice_.dispatch) - dispatches_.begin();
  return ways_[static_cast<std::size_t>(way)]->runner.run(tokens, x, experts, choice_.parts, overlap, h,
                                                          counters);
}

}  // namespace grace
