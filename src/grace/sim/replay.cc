#include "grace/sim/replay.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "grace/base/check.h"
#include "grace/routing/routing.h"

namespace grace {
namespace {

using TokensOfDevice = std::vector<std::vector<std::int64_t>>;  // [D][tokens]: rows of the trace, in the
                                                                // order in which they are fed

// The steps of the batch of sequences [begin, end).
std::vector<TokensOfDevice> steps_of_batch(const Trace& trace, int begin, int end, std::size_t num_devices) {
  std::vector<TokensOfDevice> steps(1, TokensOfDevice(num_devices));
  for (int sequence = begin; sequence < end; ++sequence) {
    const std::size_t device = static_cast<std::size_t>(sequence - begin) % num_devices;
    const std::int64_t first = trace.sequence_offsets[static_cast<std::size_t>(sequence)];
    const std::int64_t last = trace.sequence_offsets[static_cast<std::size_t>(sequence) + 1];
    const std::int64_t decoded = std::min(first + trace.prompt_length(sequence), last);
    for (std::int64_t token = first; token < decoded; ++token) steps[0][device].push_back(token);
    for (std::int64_t token = decoded; token < last; ++token) {
      const auto step = static_cast<std::size_t>(token - decoded) + 1;
      if (step == steps.size()) steps.emplace_back(num_devices);
      steps[step][device].push_back(token);
    }
  }
  return steps;
}

std::vector<TokensOfDevice> steps_of(const Trace& trace, int batch, std::size_t num_devices) {
  std::vector<TokensOfDevice> steps;
  const int num_sequences = trace.num_sequences();
  const int stride = batch == 0 ? std::max(1, num_sequences) : batch;
  for (int begin = 0; begin < num_sequences; begin += stride) {
    const int end = stride < num_sequences - begin ? begin + stride : num_sequences;
    for (TokensOfDevice& step : steps_of_batch(trace, begin, end, num_devices))
      steps.push_back(std::move(step));
  }
  return steps;
}

// One layer's routers and what they have sent so far.
class LayerRun {
 public:
  LayerRun(const Trace& trace, MoeOrdinal layer, const Cluster& cluster, const ReplayOptions& options,
           std::vector<std::unique_ptr<Router>> routers)
      : trace_(trace), layer_(layer), cluster_(cluster), options_(options), routers_(std::move(routers)) {
    result_.traffic.load.assign(routers_.size(), 0);
    result_.mean_max_over_mean = 0;
  }

  void step(const TokensOfDevice& tokens_of_device) {
    sends_.clear();
    for (std::size_t device = 0; device < routers_.size(); ++device)
      sends_.push_back(send(device, tokens_of_device[device]));
    const LayerTraffic traffic = traffic_of(sends_, cluster_, options_.bytes_per_vector);
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
  SendCounts send(std::size_t device, const std::vector<std::int64_t>& tokens) {
    choices_.clear();
    for (const std::int64_t token : tokens) {
      const std::span<const std::uint16_t> of_token = trace_.choices(token, layer_);
      choices_.insert(choices_.end(), of_token.begin(), of_token.end());
    }
    device_of_choice_.resize(choices_.size());
    routers_[device]->route(choices_, trace_.experts_per_token, device_of_choice_);
    return count_sends(device_of_choice_, trace_.experts_per_token, options_.dispatch,
                       static_cast<int>(routers_.size()));
  }

  const Trace& trace_;
  const MoeOrdinal layer_;
  const Cluster& cluster_;
  const ReplayOptions& options_;
  std::vector<std::unique_ptr<Router>> routers_;  // [D]
  LayerReplay result_;
  std::vector<SendCounts> sends_;
  std::vector<std::uint16_t> choices_;
  std::vector<std::int32_t> device_of_choice_;
};

Result<std::vector<std::unique_ptr<Router>>> make_routers(const Plan& plan, const LayerPlan& layer,
                                                          const Cluster& cluster) {
  std::vector<std::unique_ptr<Router>> routers;
  for (int device = 0; device < cluster.num_devices(); ++device)
    routers.push_back(
        GRACE_TRY(make_router(plan.routing, layer, plan.num_experts, cluster, DeviceId(device))));
  return routers;
}

Status check_replay(const Trace& trace, const Plan& plan, const Cluster& cluster,
                    const ReplayOptions& options) {
  if (options.batch < 0) return invalid_input("batch " + std::to_string(options.batch) + " is below 0");
  if (options.bytes_per_vector < 0)
    return invalid_input("bytes per vector " + std::to_string(options.bytes_per_vector) + " is below 0");
  GRACE_TRY(check_fits(plan, trace.num_experts, trace.decoder_layers, "trace of " + trace.model));
  const std::vector<std::string> faults = violations(plan, cluster);
  if (!faults.empty()) return invalid_input("plan: " + faults.front());
  return {};
}

}  // namespace

static_assert(kNotRouted == kNotChosen, "a trace's choices are routed as they are");

Result<Replay> replay(const Trace& trace, const Plan& plan, const Cluster& cluster,
                      const ReplayOptions& options, ThreadPool& pool) {
  GRACE_TRY(check_replay(trace, plan, cluster, options));
  std::vector<LayerRun> runs;
  for (int m = 0; m < plan.num_moe_layers(); ++m)
    runs.emplace_back(trace, MoeOrdinal(m), cluster, options,
                      GRACE_TRY(make_routers(plan, plan.layers[static_cast<std::size_t>(m)], cluster)));
  const std::vector<TokensOfDevice> steps =
      steps_of(trace, options.batch, static_cast<std::size_t>(cluster.num_devices()));

  Replay result{std::vector<LayerReplay>(runs.size()), static_cast<std::int64_t>(steps.size())};
  // Layers do not touch one another, so that the order of threads changes nothing.
  pool.for_each(runs.size(), [&](std::size_t m, int) {
    for (const TokensOfDevice& step : steps) runs[m].step(step);
    result.layers[m] = runs[m].finish();
  });
  return result;
}

}  // namespace grace
