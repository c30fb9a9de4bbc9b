// The MoE half of a decoder layer on one rank: gate -> dispatch -> experts -> combine.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "grace/base/result.h"
#include "grace/kernels/kernels.h"
#include "grace/model/model.h"
#include "grace/plan/plan.h"
#include "grace/routing/routing.h"
#include "grace/runtime/context.h"
#include "grace/runtime/engine.h"
#include "grace/runtime/messages.h"

namespace grace {

// What the gate chose for a rank's tokens.
struct Choices {
  std::vector<std::uint16_t> experts;  // [T, K], by descending probability
  std::vector<float> weights;          // [T, K]
};

// A token's result is the sum over its experts, by ascending id, of weight * output row, added up in f32 on
// the token's own rank: the same bits for every plan, rank count, dispatch and transport. Owner of its
// weights. Thread-compatible.
class MoeLayer {
 public:
  // experts: those the plan puts on this rank, loaded. Errors: those of make_router.
  static Result<MoeLayer> make(const RankContext& context, const Plan& plan, MoeOrdinal layer,
                               LayerWeights& weights, std::vector<ExpertWeights> experts);

  // Routing starts its turns anew.
  void reset(const RankContext& context);
  // Collective. h: [T, H], in and out: h += moe(norm(h)). Errors: the transport's; peer_lost when another
  // rank sends what cannot be.
  Status run(const RankContext& context, std::span<float> h, LayerCounters& counters, Choices& choices);

 private:
  struct Received {
    std::vector<std::byte> bytes;                 // the assignments point into it
    std::vector<IncomingAssignment> assignments;  // other ranks', by ascending source; then this rank's own
    std::vector<std::size_t>
        offsets;  // [D + 1]: assignments by source, none for this rank; the own ones start at the last
  };
  struct Exchange {
    Outgoing out;
    Received in;
    std::vector<float> outputs;  // [assignments, H]
  };

  void gate(const RankContext& context, std::span<const float> x, Choices& choices,
            std::vector<std::int32_t>& devices);
  Status dispatch(const RankContext& context, const RoutedTokens& tokens, Exchange& exchange,
                  LayerCounters& counters) const;
  void run_experts(const RankContext& context, Exchange& exchange) const;
  Status combine(const RankContext& context, const Exchange& exchange, const Choices& choices,
                 std::span<float> h, LayerCounters& counters) const;

  // h += the weighted outputs; output_of_cell: [T, K], nullptr where nothing was chosen.
  static void add_outputs(const RankContext& context, const Choices& choices,
                          std::span<const float* const> output_of_cell, std::span<float> h);

  LayerPlan plan_;
  std::string policy_;
  std::vector<float> norm_;
  kernels::PackedMatrix gate_;
  std::vector<kernels::PackedExpert> experts_;
  std::vector<int> slot_of_expert_;  // [E], kNotHere where the rank has no copy
  std::unique_ptr<Router> router_;
};

}  // namespace grace
