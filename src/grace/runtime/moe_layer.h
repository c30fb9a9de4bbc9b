// The MoE half of a decoder layer on one rank: gate -> dispatch -> experts -> combine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "grace/base/result.h"
#include "grace/kernels/kernels.h"
#include "grace/model/model.h"
#include "grace/plan/plan.h"
#include "grace/routing/routing.h"
#include "grace/runtime/context.h"
#include "grace/runtime/engine.h"
#include "grace/runtime/expert_work.h"
#include "grace/runtime/shared_experts.h"
#include "grace/runtime/step_runner.h"

namespace grace {

// What the gate chose for a rank's tokens.
struct Choices {
  std::vector<std::uint16_t> experts;  // [T, K], by descending probability
  std::vector<float> weights;          // [T, K]
};

// A token's result is the sum over its experts of weight * output row, added up as ExpertExchange says: with
// exact results the same bits for every plan, rank count, dispatch and transport. Owner of its weights.
// Thread-compatible.
class MoeLayer {
 public:
  // experts: those the plan puts on this rank. Errors: those of make_router; unsupported for a plan that
  // holds the gate to partners where the gate holds itself to groups.
  static Result<MoeLayer> make(const RankContext& context, const Checkpoint& checkpoint, const Plan& plan,
                               MoeOrdinal layer, LayerWeights& weights,
                               std::span<const ExpertWeights> experts);

  // A layer without norm and gate, its experts of random weights: the same for an expert on every rank.
  static Result<MoeLayer> make_random(const RankContext& context, const Plan& plan, MoeOrdinal layer,
                                      std::uint64_t seed);

  // Routing starts its turns anew.
  void reset(const RankContext& context);
  // Collective. h: [T, H], in and out: h += moe(norm(h)). choices: where it names experts, these are taken
  // and the gate weighs them; else the gate chooses. `step` serves all layers and has begun one. Errors: the
  // transport's; peer_lost when another rank sends what cannot be.
  Status run(const RankContext& context, StepRunner& step, std::span<float> h, LayerCounters& counters,
             Choices& choices);
  // Collective. h: [T, H] += what the experts chosen make of x: [T, H], which may be rounded.
  Status serve(const RankContext& context, StepRunner& step, std::span<float> x, const Choices& choices,
               std::span<float> h, LayerCounters& counters);

  const LayerPlan& plan() const { return plan_; }

 private:
  void gate(const RankContext& context, std::span<const float> x, Scratch& scratch, Choices& choices) const;
  bool overlap_pays(const RankContext& context, std::span<const std::int32_t> devices) const;

  LayerPlan plan_;
  std::vector<char> allowed_;  // [E, E] kernels::gate_among's, or empty and the gate is free
  std::string policy_;
  std::vector<float> norm_;
  kernels::GateRule rule_;
  kernels::PackedMatrix gate_;
  std::vector<float> bias_;  // [E], or empty
  std::optional<SharedExperts> shared_;
  HostedExperts experts_;
  std::unique_ptr<Router> router_;
  double last_flight_s_ = 0, last_experts_s_ = 0;  // of the last step
};

}  // namespace grace
