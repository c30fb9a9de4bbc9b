#include "grace/sim/replay.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "grace/routing/partners.h"
#include "grace/routing/routing.h"
#include "grace/sim/passes.h"

namespace grace {
namespace {

// One layer's routers and what they have sent so far.
class LayerRun {
 public:
  LayerRun(const Trace& trace, MoeOrdinal layer, const Plan& plan, const Cluster& cluster,
           const ReplayOptions& options, std::vector<std::unique_ptr<Router>> routers)
      : trace_(trace),
        plan_(plan.layers[layer.idx()]),
        layer_(layer),
        cluster_(cluster),
        options_(options),
        routers_(std::move(routers)),
        counter_(cluster, options.dispatch) {
    result_.traffic.load.assign(routers_.size(), 0);
    result_.mean_max_over_mean = 0;
  }

  void step(const sim::Pass& pass) {
    counter_.clear();
    for (std::size_t device = 0; device < routers_.size(); ++device)
      send(device, pass.devices[device].tokens);
    const LayerTraffic traffic =
        traffic_of(counter_.counts(), cluster_, options_.combine, options_.bytes_per_vector);
    result_.traffic.dispatch += traffic.dispatch;
    result_.traffic.combine += traffic.combine;
    for (std::size_t device = 0; device < routers_.size(); ++device)
      result_.traffic.load[device] += traffic.load[device];
    if (std::ranges::all_of(traffic.load, [](std::int64_t load) { return load == 0; })) return;
    ++result_.steps;
    result_.mean_max_over_mean += max_over_mean(traffic.load);
    result_.mean_load_deviation += standard_deviation(traffic.load);
  }

  LayerReplay finish() {
    const auto steps = static_cast<double>(result_.steps);
    result_.mean_max_over_mean = result_.steps == 0 ? 1 : result_.mean_max_over_mean / steps;
    result_.mean_load_deviation = result_.steps == 0 ? 0 : result_.mean_load_deviation / steps;
    return std::move(result_);
  }

 private:
  void send(std::size_t device, const std::vector<std::int64_t>& tokens) {
    choices_.clear();
    for (const std::int64_t token : tokens) {
      const std::span<const std::uint16_t> of_token = trace_.choices(token, layer_);
      choices_.insert(choices_.end(), of_token.begin(), of_token.end());
      hold_to_partners(plan_, std::span(choices_).last(of_token.size()), trace_.weights(token, layer_));
    }
    device_of_choice_.resize(choices_.size());
    routers_[device]->route(choices_, trace_.experts_per_token, device_of_choice_);
    counter_.add(DeviceId(static_cast<std::int32_t>(device)), device_of_choice_, trace_.experts_per_token);
  }

  const Trace& trace_;
  const LayerPlan& plan_;
  const MoeOrdinal layer_;
  const Cluster& cluster_;
  const ReplayOptions& options_;
  std::vector<std::unique_ptr<Router>> routers_;  // [D]
  LayerReplay result_;
  HopCounter counter_;
  std::vector<std::uint16_t> choices_;
  std::vector<std::int32_t> device_of_choice_;
};

Status check_options(const ReplayOptions& options) {
  if (options.bytes_per_vector < 0)
    return invalid_input("bytes per vector " + std::to_string(options.bytes_per_vector) + " is below 0");
  return {};
}

}  // namespace

Result<Replay> replay(const Trace& trace, const Plan& plan, const Cluster& cluster,
                      const ReplayOptions& options, ThreadPool& pool) {
  GRACE_TRY(check_options(options));
  GRACE_TRY(sim::check_workload(trace, plan, cluster, options.batch, options.workload));
  std::vector<LayerRun> runs;
  for (int m = 0; m < plan.num_moe_layers(); ++m)
    runs.emplace_back(trace, MoeOrdinal(m), plan, cluster, options,
                      GRACE_TRY(sim::make_routers(plan, MoeOrdinal(m), cluster)));
  const std::vector<sim::Pass> steps =
      sim::passes_of(trace, options.batch, options.workload, cluster.num_devices(), 0);

  Replay result{std::vector<LayerReplay>(runs.size()), static_cast<std::int64_t>(steps.size())};
  // Layers do not touch one another, so that the order of threads changes nothing.
  pool.for_each(runs.size(), [&](std::size_t m, int) {
    for (const sim::Pass& step : steps) runs[m].step(step);
    result.layers[m] = runs[m].finish();
  });
  return result;
}

}  // namespace grace
