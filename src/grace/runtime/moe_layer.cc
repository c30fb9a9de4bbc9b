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

// Rows for each expert from which on its weights may as well be read twice: once for what is here, once for
// what comes.
constexpr std::size_t kManyRows = 8;

std::vector<char> allowed_by(const LayerPlan& plan) {
  const std::size_t experts = plan.partners_of_expert.size();
  std::vector<char> allowed(experts * experts, 0);
  for (std::size_t best = 0; best < experts; ++best)
    for (const ExpertId partner : plan.partners_of_expert[best]) allowed[best * experts + partner.idx()] = 1;
  return allowed;
}

kernels::GateRule rule_of(const ModelConfig& config) {
  const ExpertChoice& choice = config.choice;
  return {
      .experts = config.num_experts,
      .top = config.experts_per_token,
      .scores = choice.scoring == Scoring::kSigmoid ? kernels::Scores::kSigmoid : kernels::Scores::kSoftmax,
      .groups = choice.groups,
      .groups_kept = choice.groups_kept,
      .group_best = choice.group_best,
      .normalise = config.norm_topk_prob,
      .scale = static_cast<float>(choice.scale)};
}

}  // namespace

Result<MoeLayer> MoeLayer::make(const RankContext& context, const Checkpoint& checkpoint, const Plan& plan,
                                MoeOrdinal layer, LayerWeights& weights,
                                std::span<const ExpertWeights> experts) {
  GRACE_TRY(check_partners(plan, context.config.experts_per_token));
  MoeLayer made;
  made.plan_ = plan.layers[layer.idx()];
  made.allowed_ = allowed_by(made.plan_);
  made.policy_ = plan.routing;
  if (!made.allowed_.empty() && context.config.choice.groups > 1)
    return unsupported("plan " + plan.strategy + ": it holds the gate to partners, and the gate of " +
                       context.config.name + " holds itself to groups of experts");
  made.norm_ = std::move(weights.post_attention_norm);
  made.rule_ = rule_of(context.config);
  made.bias_ = std::move(weights.router_bias);
  if (context.config.shared_ffn_size > 0) made.shared_ = load_shared(context, checkpoint, weights);
  made.gate_ = pack_router(context, checkpoint, weights.router);
  made.experts_.slot_of_expert.assign(static_cast<std::size_t>(context.config.num_experts), kNotHere);
  for (const ExpertWeights& expert : experts) {
    made.experts_.slot_of_expert[expert.expert.idx()] = static_cast<int>(made.experts_.weights.size());
    made.experts_.weights.push_back(pack_ffn(context, checkpoint, expert.ffn));
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
  made.experts_.slot_of_expert.assign(static_cast<std::size_t>(context.config.num_experts), kNotHere);
  const auto random_matrix = [](Rng rng, int out, int in) {
    std::vector<float> values(static_cast<std::size_t>(out) * static_cast<std::size_t>(in));
    const double scale = std::sqrt(3.0 / in);  // a row's product keeps the size of its input
    for (float& value : values) value = static_cast<float>(scale * (2 * rng.uniform() - 1));
    return values;
  };
  const Rng of_layer = Rng(seed).fork(layer.idx());
  for (const ExpertId expert : made.plan_.experts_on(context.device())) {
    const Rng rng = of_layer.fork(expert.idx());
    made.experts_.slot_of_expert[expert.idx()] = static_cast<int>(made.experts_.weights.size());
    made.experts_.weights.push_back(
        kernels::pack_expert(random_matrix(rng.fork(0), ffn, hidden), random_matrix(rng.fork(1), ffn, hidden),
                             random_matrix(rng.fork(2), hidden, ffn), hidden, ffn, context.arithmetic));
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

Status MoeLayer::run(const RankContext& context, StepRunner& step, std::span<float> h,
                     LayerCounters& counters, Choices& choices) {
  const std::span<float> x = step.memory().normed.take(h.size());
  {
    const Stopwatch time(counters.gate_s);
    const CpuStopwatch work(counters.gate_cpu_s);
    const double begin = now_s();
    kernels::rms_norm(h, norm_, context.config.rms_norm_eps, x, context.pool);
    gate(context, x, step.memory().logits, choices);
    context.spans.add(Activity::kGate, begin, now_s());
  }
  return serve(context, step, x, choices, h, counters);
}

Status MoeLayer::serve(const RankContext& context, StepRunner& step, std::span<float> x,
                       const Choices& choices, std::span<float> h, LayerCounters& counters) {
  std::vector<std::int32_t>& devices = step.memory().devices;
  devices.assign(choices.experts.size(), kNoDevice.value);
  {
    const Stopwatch time(counters.gate_s);
    const CpuStopwatch work(counters.gate_cpu_s);
    router_->route(choices.experts, context.config.experts_per_token, devices);
  }
  const double experts_s = counters.experts_s;
  GRACE_TRY(step.run({{}, choices.experts, choices.weights, devices}, x,
                     {experts_, shared_ ? &*shared_ : nullptr}, overlap_pays(context, devices), h, counters));
  last_experts_s_ = counters.experts_s - experts_s;
  last_flight_s_ =
      counters.dispatch_end_s - counters.dispatch_begin_s + counters.combine_end_s - counters.combine_begin_s;
  return {};
}

// Computing own rows apart reads the weights of many experts twice. That costs nothing where rows are many,
// and little beside an exchange that takes longer than the experts do.
bool MoeLayer::overlap_pays(const RankContext& context, std::span<const std::int32_t> devices) const {
  if (context.overlap != Overlap::kWherePays || context.aligned)
    return context.overlap == Overlap::kAlways && !context.aligned;
  const auto own = static_cast<std::size_t>(std::ranges::count(devices, context.device().value));
  return own >= kManyRows * experts_.weights.size() || last_flight_s_ > last_experts_s_;
}

void MoeLayer::gate(const RankContext& context, std::span<const float> x, Scratch& scratch,
                    Choices& choices) const {
  const ModelConfig& config = context.config;
  const std::size_t tokens = x.size() / norm_.size();
  const std::span<float> logits = scratch.take(tokens * static_cast<std::size_t>(config.num_experts));
  kernels::matmul(x, gate_, logits, context.pool);
  const std::size_t cells = tokens * static_cast<std::size_t>(config.experts_per_token);
  choices.weights.assign(cells, 0.0F);
  if (!choices.experts.empty()) {
    GRACE_CHECK(choices.experts.size() == cells, "experts are not [T, K]");
    kernels::weigh(logits, rule_, choices.experts, choices.weights);
    return;
  }
  choices.experts.assign(cells, kNotChosen);
  kernels::gate(logits, rule_, bias_, allowed_, choices.experts, choices.weights, context.pool);
}

}  // namespace grace
