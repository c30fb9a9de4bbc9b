#include "grace/planner/judge.h"

#include <algorithm>
#include <memory>

#include "grace/base/check.h"
#include "grace/base/rng.h"
#include "grace/routing/partners.h"
#include "grace/routing/routing.h"

namespace grace {
namespace {

class LayerJudge {
 public:
  LayerJudge(const Trace& trace, MoeOrdinal layer, const Plan& plan, const Cluster& cluster,
             const JudgeOptions& options, std::vector<std::unique_ptr<Router>> routers)
      : trace_(trace),
        plan_(plan.layers[layer.idx()]),
        layer_(layer),
        cluster_(cluster),
        options_(options),
        routers_(std::move(routers)),
        counter_(cluster, trace.num_experts, options.dispatch),
        choices_(static_cast<std::size_t>(trace.experts_per_token)),
        devices_(static_cast<std::size_t>(trace.experts_per_token)) {}

  void batch(const JudgeTokens& tokens, std::size_t begin, std::size_t end) {
    counter_.clear();
    const std::size_t every = static_cast<std::size_t>(options_.feedback_every) * routers_.size();
    const auto expected = static_cast<std::int64_t>(end - begin) * trace_.experts_per_token;
    for (std::size_t i = begin; i < end; ++i) {
      if ((i - begin) % every == 0)
        for (const std::unique_ptr<Router>& router : routers_)
          router->observe(counter_.counts().load, expected);
      std::ranges::copy(trace_.choices(tokens.rows[i], layer_), choices_.begin());
      hold_to_partners(plan_, choices_, trace_.weights(tokens.rows[i], layer_));
      routers_[tokens.source[i].idx()]->route(choices_, trace_.experts_per_token, devices_);
      counter_.add(tokens.source[i], choices_, devices_, trace_.experts_per_token);
    }
    sum_.add(counter_.counts(), cluster_, options_.sizes);
  }
  Figures mean() const { return sum_.mean(); }

 private:
  const Trace& trace_;
  const LayerPlan& plan_;
  MoeOrdinal layer_;
  const Cluster& cluster_;
  const JudgeOptions& options_;
  std::vector<std::unique_ptr<Router>> routers_;  // [D]
  BatchCounter counter_;
  std::vector<std::uint16_t> choices_;  // of one token, as the devices_
  std::vector<std::int32_t> devices_;
  FigureSum sum_;
};

Result<std::vector<std::unique_ptr<Router>>> routers_of(const Plan& plan, std::size_t m,
                                                        const Cluster& cluster) {
  std::vector<std::unique_ptr<Router>> routers;
  for (int d = 0; d < cluster.num_devices(); ++d)
    routers.push_back(
        GRACE_TRY(make_router(plan.routing, plan.layers[m], plan.num_experts, cluster, DeviceId(d))));
  return routers;
}

}  // namespace

JudgeTokens judge_tokens(const Trace& trace, std::span<const int> sequences, int num_devices,
                         std::uint64_t seed) {
  JudgeTokens in_order;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const auto s = static_cast<std::size_t>(sequences[i]);
    for (std::int64_t row = trace.sequence_offsets[s]; row < trace.sequence_offsets[s + 1]; ++row) {
      in_order.rows.push_back(row);
      in_order.source.push_back(DeviceId(static_cast<int>(i % static_cast<std::size_t>(num_devices))));
    }
  }
  std::vector<std::size_t> order(in_order.rows.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  Rng(seed).fork(7).shuffle(std::span(order));
  JudgeTokens tokens;
  for (const std::size_t i : order) {
    tokens.rows.push_back(in_order.rows[i]);
    tokens.source.push_back(in_order.source[i]);
  }
  return tokens;
}

Result<std::vector<Figures>> judge(const Plan& plan, const Trace& trace, const JudgeTokens& tokens,
                                   const Cluster& cluster, const JudgeOptions& options, ThreadPool& pool) {
  GRACE_CHECK(options.batch > 0 && options.feedback_every > 0, "a batch has tokens");
  GRACE_TRY(check_fits(plan, trace.num_experts, trace.decoder_layers, "trace of " + trace.model));
  const std::vector<std::string> faults = violations(plan, cluster);
  if (!faults.empty()) return invalid_input("plan: " + faults.front());
  GRACE_TRY(check_partners(plan, trace.experts_per_token));
  std::vector<LayerJudge> judges;
  for (std::size_t m = 0; m < plan.layers.size(); ++m)
    judges.emplace_back(trace, MoeOrdinal(static_cast<int>(m)), plan, cluster, options,
                        GRACE_TRY(routers_of(plan, m, cluster)));
  std::vector<Figures> figures(judges.size());
  const auto batch = static_cast<std::size_t>(options.batch);
  pool.for_each(judges.size(), [&](std::size_t m, int) {
    std::size_t begin = 0;
    for (; begin + batch <= tokens.rows.size(); begin += batch) judges[m].batch(tokens, begin, begin + batch);
    if (begin == 0) judges[m].batch(tokens, 0, tokens.rows.size());
    figures[m] = judges[m].mean();
  });
  return figures;
}

}  // namespace grace
