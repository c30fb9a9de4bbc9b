#include "grace/sizing/requests.h"

#include <fmt/format.h>

#include <utility>

#include "grace/base/commas.h"
#include "grace/sizing/sizes.h"

namespace grace {
namespace {

Status check_request(const PlanRequest& request) {
  if (request.partners < 0 || (request.partners != 0 && request.strategy != "c2r"))
    return invalid_input(fmt::format("partners: {} is for c2r, and at least 1", request.partners));
  if (request.r > 1) return invalid_input(fmt::format("r: {} is outside [0, 1]", request.r));
  if (!request.slots.empty() && request.memory_bytes != 0)
    return invalid_input("slots and memory: one budget, not two");
  return {};
}

Result<SlotsSpec> one_budget(const std::string& slots) {
  const std::vector<SlotsSpec> specs = GRACE_TRY(parse_slots(slots));
  if (specs.size() > 1) return invalid_input(fmt::format("slots: {} budgets; a plan has one", specs.size()));
  return specs.front();
}

// Elsewhere than where seconds are minimised, a model that is known by its name, but has another shape, says
// nothing.
Result<LayerSizes> sizes_of(const PlanRequest& request, const Trace& trace) {
  Result<LayerSizes> sizes = sizes_if_known(request.shape, trace);
  if (!sizes.ok() && request.shape.empty() && !needs_sizes(request.strategy)) return LayerSizes();
  if (sizes.ok()) GRACE_TRY(check_sizes(request.strategy, sizes.value(), trace.model));
  return sizes;
}

PlanOptions options_of(const PlanRequest& request, const LayerSizes& sizes) {
  PlanOptions options;
  options.strategy = request.strategy;
  options.r = request.r;
  options.seed = request.seed;
  options.memory_bytes = request.memory_bytes;
  options.partners = request.partners;
  options.effort = request.effort;
  options.objective.batch = request.batch;
  options.objective.sizes = sizes;
  return options;
}

}  // namespace

Result<PlanOptions> plan_options(const PlanRequest& request, const Trace& trace, const Cluster& cluster,
                                 ThreadPool& pool) {
  GRACE_TRY(check_request(request));
  PlanOptions options = options_of(request, GRACE_TRY(sizes_of(request, trace)));
  if (request.slots.empty()) return options;
  const SlotsSpec budget = GRACE_TRY(one_budget(request.slots));
  options.slots = GRACE_TRY(slots_for(budget, trace, cluster, request.seed, pool));
  return options;
}

Result<PlanOptions> plan_options(const PlanRequest& request, const LoadProfile& loads) {
  GRACE_TRY(check_request(request));
  PlanOptions options = options_of(request, GRACE_TRY(sizes_of(request, without_tokens(loads))));
  if (request.slots.empty()) return options;
  const SlotsSpec budget = GRACE_TRY(one_budget(request.slots));
  if (budget.as_grace)
    return invalid_input("slots: grace's own need the tokens that a load profile lacks; name a number");
  if (budget.slots > 0) options.slots = {budget.slots};
  return options;
}

Result<CompareOptions> compare_options(const CompareRequest& request, const Trace& trace) {
  CompareOptions options;
  options.sizes = GRACE_TRY(sizes_if_known(request.shape, trace));
  const std::vector<std::string> names = request.strategies.empty()
                                             ? default_contenders(options.sizes.known())
                                             : split_at_commas(request.strategies);
  for (const std::string& name : names) {
    options.contenders.push_back(GRACE_TRY(parse_contender(name)));
    GRACE_TRY(check_sizes(options.contenders.back().strategy, options.sizes, trace.model));
  }
  if (!request.slots.empty()) options.slots = GRACE_TRY(parse_slots(request.slots));
  options.splits = request.splits;
  options.batch = request.batch;
  options.effort = request.effort;
  options.seed = request.seed;
  return options;
}

}  // namespace grace
