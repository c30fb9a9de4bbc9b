#include "grace/planner/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "grace/planner/planner.h"

namespace grace {

std::string SlotsSpec::name() const {
  return as_grace ? "grace" : slots == 0 ? "default" : fmt::format("{}", slots);
}

Result<std::vector<SlotsSpec>> parse_slots(std::string_view list) {
  std::vector<SlotsSpec> specs;
  while (true) {
    const std::size_t comma = list.find(',');
    const std::string_view item = list.substr(0, comma);
    SlotsSpec spec;
    if (item == "grace") {
      spec.as_grace = true;
    } else {
      const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), spec.slots);
      if (error != std::errc() || end != item.data() + item.size() || spec.slots < 1)
        return invalid_input(fmt::format("slots: `{}` is neither a number of at least 1 nor `grace`", item));
    }
    specs.push_back(spec);
    if (comma == list.npos) return specs;
    list.remove_prefix(comma + 1);
  }
}

std::vector<int> fullest_devices(const Plan& plan) {
  std::vector<int> slots;
  for (const LayerPlan& layer : plan.layers) {
    std::size_t most = 0;
    for (std::size_t d = 0; d < layer.primaries_of_device.size(); ++d)
      most = std::max(most, layer.primaries_of_device[d].size() + layer.replicas_of_device[d].size());
    slots.push_back(static_cast<int>(most));
  }
  return slots;
}

Result<std::vector<int>> slots_for(const SlotsSpec& spec, const Trace& trace, const Cluster& cluster,
                                   std::uint64_t seed, ThreadPool& pool) {
  if (!spec.as_grace) return spec.slots == 0 ? std::vector<int>() : std::vector<int>{spec.slots};
  PlanOptions options;
  options.strategy = "grace";
  options.r = kPublishedR;
  options.seed = seed;
  return fullest_devices(GRACE_TRY(make_plan(trace, cluster, options, pool)).plan);
}

}  // namespace grace
