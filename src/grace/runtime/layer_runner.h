// One MoE layer's exchange and experts at work together: what is here is computed while the rest flies.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "grace/base/result.h"
#include "grace/runtime/context.h"
#include "grace/runtime/engine.h"
#include "grace/runtime/expert_exchange.h"
#include "grace/runtime/expert_work.h"
#include "grace/runtime/shared_experts.h"

namespace grace {

// What a layer's tokens meet on this rank.
struct LayerExperts {
  const HostedExperts& hosted;
  const SharedExperts* shared = nullptr;  // none
};

// Serves all layers of an engine in turn. The tokens of a step go in one part or several, one behind the
// other, so that the experts of one work while another flies; what comes out is the same. Thread-compatible;
// buffers are kept.
class LayerRunner {
 public:
  // The context must outlive it. parts: the most that run() is asked for. Collective, as Transport::open.
  LayerRunner(const RankContext& context, std::size_t parts);

  // Collective: all ranks say the same number of parts, at most the constructor's. x: [T, H], what the tokens
  // are, in place of tokens.x; rounded first as the wire rounds it. h: [T, H] += what the experts chosen make
  // of x, then += what the shared ones do, which are computed while messages fly. overlap: rows that are here
  // are computed while others fly, else all at once when all have come; for this rank to choose. Errors: the
  // transport's; peer_lost when another rank sends what cannot be.
  Status run(RoutedTokens tokens, std::span<float> x, const LayerExperts& experts, std::size_t parts,
             bool overlap, std::span<float> h, LayerCounters& counters);

 private:
  // Some of the tokens, and how far they are.
  struct Part {
    Part(const RankContext& context, std::size_t hidden) : exchange(context), own(hidden), foreign(hidden) {}
    ExpertExchange exchange;
    ExpertWork own, foreign;
    std::size_t first_token = 0, tokens = 0;
    bool answered = false;
    double sent_s = 0;
  };
  enum class Leg { kDispatch, kCombine };

  Status start(Part& part, const RoutedTokens& tokens);
  Status await(Part& part, Leg leg);
  Status compute(Part& part);
  Status answer(Part& part);
  void finish(Part& part, std::span<float> h);
  void finish_shared(std::span<float> h);
  Status check_hosted(std::span<const ExpertRow> rows) const;
  bool run_some_own();
  bool fills_waits() const { return context_.overlap != Overlap::kOff && !context_.aligned; }
  static Result<bool> look(Part& part, Leg leg, bool wait);

  const RankContext& context_;
  std::size_t hidden_, top_k_;
  std::vector<std::unique_ptr<Part>> parts_;
  std::span<const std::unique_ptr<Part>> running_;
  SharedWork shared_;
  bool overlap_ = false;
  const HostedExperts* experts_ = nullptr;
  LayerCounters* counters_ = nullptr;
};

}  // namespace grace
