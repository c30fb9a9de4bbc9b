#include "grace/runtime/moe_layer.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "grace/base/check.h"
#include "grace/base/rng.h"
#include "grace/runtime/packing.h"
#include "grace/runtime/stopwatch.h"

namespace grace {
namespace {

constexpr int kNotHere = -1;
// Rows of one expert that one thread computes at a time: enough to use a weight often once it is in the
// cache, few enough to share out.
constexpr std::size_t kRowsPerItem = 64;

std::vector<char> allowed_by(const LayerPlan& plan) {
  const std::size_t experts = plan.partners_of_expert.size();
  std::vector<char> allowed(experts * experts, 0);
  for (std::size_t best = 0; best < experts; ++best)
    for (const ExpertId partner : plan.partners_of_expert[best])
      allowed[best * experts + partner.idx()] = 1;
  return allowed;
}

}  // namespace

Result<MoeLayer> MoeLayer::make(const RankContext& context, const Plan& plan, MoeOrdinal layer,
                                LayerWeights& weights, std::vector<ExpertWeights> experts) {
  GRACE_TRY(check_partners(plan, context.config.experts_per_token));
  MoeLayer made;
  made.plan_ = plan.layers[layer.idx()];
  made.allowed_ = allowed_by(made.plan_);
  made.policy_ = plan.routing;
  made.norm_ = std::move(weights.post_attention_norm);
  made.gate_ = pack_and_free(weights.router);
  made.slot_of_expert_.assign(static_cast<std::size_t>(context.config.num_experts), kNotHere);
  for (ExpertWeights& expert : experts) {
    made.slot_of_expert_[expert.expert.idx()] = static_cast<int>(made.experts_.size());
    made.experts_.push_back(
        {pack_and_free(expert.gate), pack_and_free(expert.up), pack_and_free(expert.down)});
  }
  made.router_ = GRACE_TRY(
      make_router(made.policy_, made.plan_, context.config.num_experts, context.cluster, context.device()));
  return made;
}

Result<MoeLayer> MoeLayer::make_random(const RankContext& context, const Plan& plan, MoeOrdinal layer,
                                       std::uint64_t seed) {
  const int hidden = context.config.hidden_size, ffn = context.config.expert_ffn_size;
  MoeLayer made;
  made.plan_ = plan.layers[layer.idx()];
  made.policy_ = plan.routing;
  made.slot_of_expert_.assign(static_cast<std::size_t>(context.config.num_experts), kNotHere);
  const auto random_matrix = [](Rng rng, int out, int in) {
    std::vector<float> values(static_cast<std::size_t>(out) * static_cast<std::size_t>(in));
    const double scale = std::sqrt(3.0 / in);  // a row's product keeps the size of its input
    for (float& value : values) value = static_cast<float>(scale * (2 * rng.uniform() - 1));
    return kernels::pack(values, out, in);
  };
  const Rng of_layer = Rng(seed).fork(layer.idx());
  for (const ExpertId expert : made.plan_.experts_on(context.device())) {
    const Rng rng = of_layer.fork(expert.idx());
    made.slot_of_expert_[expert.idx()] = static_cast<int>(made.experts_.size());
    made.experts_.push_back({random_matrix(rng.fork(0), ffn, hidden), random_matrix(rng.fork(1), ffn, hidden),
                             random_matrix(rng.fork(2), hidden, ffn)});
  }
  made.router_ = GRACE_TRY(
      make_router(made.policy_, made.plan_, context.config.num_experts, context.cluster, context.device()));
  return made;
}

void MoeLayer::reset(const RankContext& context) {
  auto router = make_router(policy_, plan_, context.config.num_experts, context.cluster, context.device());
  GRACE_CHECK(router.ok(), "a router that could be made before cannot be made again");
  router_ = std::move(router).value();
}

Status MoeLayer::run(const RankContext& context, ExpertExchange& exchange, std::span<float> h,
                     LayerCounters& counters, Choices& choices) {
  std::vector<float> x(h.size());
  {
    const Stopwatch time(counters.gate_s);
    const CpuStopwatch work(counters.gate_cpu_s);
    kernels::rms_norm(h, norm_, context.config.rms_norm_eps, x);
    gate(context, x, choices);
  }
  return serve(context, exchange, x, choices, h, counters);
}

Status MoeLayer::serve(const RankContext& context, ExpertExchange& exchange, std::span<const float> x,
                       const Choices& choices, std::span<float> h, LayerCounters& counters) {
  std::vector<std::int32_t> devices(choices.experts.size(), kNoDevice.value);
  {
    const Stopwatch time(counters.gate_s);
    const CpuStopwatch work(counters.gate_cpu_s);
    router_->route(choices.experts, context.config.experts_per_token, devices);
  }
  counters.tokens += static_cast<std::int64_t>(h.size()) / context.config.hidden_size;
  HopCost there, back;
  {
    const Stopwatch time(counters.dispatch_s);
    counters.dispatch_begin_s = now_s();
    GRACE_TRY(exchange.dispatch({x, choices.experts, choices.weights, devices}, there));
    GRACE_TRY(check_hosted(context, exchange.rows()));
    counters.dispatch_end_s = now_s();
  }
  counters.assignments += static_cast<std::int64_t>(exchange.rows().size());
  std::vector<float> outputs;
  {
    const Stopwatch time(counters.experts_s);
    const CpuStopwatch work(counters.experts_cpu_s);
    run_experts(context, exchange.rows(), outputs);
  }
  {
    const Stopwatch time(counters.combine_s);
    counters.combine_begin_s = now_s();
    GRACE_TRY(exchange.combine(outputs, h, back));
    counters.combine_end_s = now_s();
  }
  counters.dispatch += there.bytes;
  counters.combine += back.bytes;
  counters.wait_s += there.wait_s + back.wait_s;
  return {};
}

void MoeLayer::gate(const RankContext& context, std::span<const float> x, Choices& choices) const {
  const ModelConfig& config = context.config;
  const std::size_t tokens = x.size() / norm_.size();
  std::vector<float> logits(tokens * static_cast<std::size_t>(config.num_experts));
  kernels::matmul(x, gate_, logits, context.pool);
  choices.experts.assign(tokens * static_cast<std::size_t>(config.experts_per_token), kNotChosen);
  choices.weights.assign(choices.experts.size(), 0.0F);
  kernels::gate_among(logits, config.num_experts, config.experts_per_token, config.norm_topk_prob, allowed_,
                      choices.experts, choices.weights);
}

Status MoeLayer::check_hosted(const RankContext& context, std::span<const ExpertRow> rows) const {
  for (const ExpertRow& row : rows) {
    if (slot_of_expert_[row.expert.idx()] != kNotHere) continue;
    return lost(context, "rank " + std::to_string(context.transport.rank()) + " is sent a token for expert " +
                             std::to_string(row.expert.value) +
                             ", which it does not hold: the ranks' plans differ");
  }
  return {};
}

void MoeLayer::run_experts(const RankContext& context, std::span<const ExpertRow> assignments,
                           std::vector<float>& outputs) const {
  const auto hidden = static_cast<std::size_t>(context.config.hidden_size);
  std::vector<std::vector<std::size_t>> rows_of_slot(experts_.size());
  for (std::size_t row = 0; row < assignments.size(); ++row) {
    rows_of_slot[static_cast<std::size_t>(slot_of_expert_[assignments[row].expert.idx()])].push_back(row);
  }
  struct Item {
    std::size_t slot;
    std::span<const std::size_t> rows;
  };
  std::vector<Item> items;
  for (std::size_t slot = 0; slot < rows_of_slot.size(); ++slot) {
    const std::span<const std::size_t> rows = rows_of_slot[slot];
    for (std::size_t first = 0; first < rows.size(); first += kRowsPerItem) {
      items.push_back({slot, rows.subspan(first, std::min(kRowsPerItem, rows.size() - first))});
    }
  }
  outputs.resize(assignments.size() * hidden);
  context.pool.for_each(items.size(), [&](std::size_t i, int) {
    const std::span<const std::size_t> rows = items[i].rows;
    std::vector<float> x(rows.size() * hidden);
    std::vector<float> y(x.size());
    for (std::size_t r = 0; r < rows.size(); ++r)
      std::copy_n(assignments[rows[r]].x, hidden, x.data() + r * hidden);
    kernels::expert_ffn(x, experts_[items[i].slot], y);
    for (std::size_t r = 0; r < rows.size(); ++r)
      std::copy_n(y.data() + r * hidden, hidden, outputs.data() + rows[r] * hidden);
  });
}

}  // namespace grace
