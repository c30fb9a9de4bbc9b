#include "grace/sim/simulate.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <utility>

#include "grace/base/check.h"
#include "grace/routing/partners.h"
#include "grace/routing/routing.h"
#include "grace/sim/passes.h"

namespace grace {
namespace {

using sim::DeviceWork;
using sim::Pass;

// Tokens of a source between two observations of the loads, and of one call of its router.
constexpr std::size_t kTokensPerCall = 32;
// A trace's rows of one layer lie far apart, and the processor does not see the next one coming.
constexpr std::size_t kRowsAhead = 16;

std::int64_t tokens_of(const Pass& pass) {
  std::int64_t tokens = 0;
  for (const DeviceWork& work : pass.devices) tokens += static_cast<std::int64_t>(work.tokens.size());
  return tokens;
}

// One MoE layer's routers and what they have done so far.
class LayerRun {
 public:
  LayerRun(const Trace& trace, MoeOrdinal layer, const Plan& plan, const Cluster& cluster,
           const SimulateOptions& options, std::vector<std::unique_ptr<Router>> routers)
      : trace_(trace),
        plan_(plan.layers[layer.idx()]),
        layer_(layer),
        cluster_(cluster),
        options_(options),
        routers_(std::move(routers)),
        counter_(cluster, trace.num_experts, options.dispatch, options.combine),
        compute_of_pass_(routers_.size()) {
    result_.compute_of_device_s.assign(routers_.size(), 0);
    result_.load.assign(routers_.size(), 0);
    const std::size_t call = kTokensPerCall * static_cast<std::size_t>(trace.experts_per_token);
    choices_.resize(call);
    device_of_choice_.resize(call);
  }

  // `record`, where there is one, receives what this layer did.
  void pass(const Pass& pass, PassRecord* record) {
    counter_.clear();
    std::size_t longest = 0;
    for (const DeviceWork& work : pass.devices) longest = std::max(longest, work.tokens.size());
    const std::int64_t expected = tokens_of(pass) * trace_.experts_per_token;
    // Sources run side by side, a call each in turn, as far as feedback is concerned.
    for (std::size_t begin = 0; begin < longest; begin += kTokensPerCall) {
      for (const std::unique_ptr<Router>& router : routers_)
        router->observe(counter_.counts().load, expected);
      for (std::size_t device = 0; device < routers_.size(); ++device)
        route(device, pass.devices[device].tokens, begin);
    }
    const BatchCounts& counts = counter_.counts();
    figures_.add(counts, cluster_, {});
    result_.cross_node_vectors += cross_node_vectors(counts);
    result_.intra_node_vectors += intra_node_vectors(counts);
    const LinkVectors& results = options_.combine == Combine::kExact ? counts.home : counts;
    result_.cross_node_results += cross_node_vectors(results);
    result_.intra_node_results += intra_node_vectors(results);
    for (std::size_t d = 0; d < routers_.size(); ++d) result_.load[d] += counts.load[d];
    if (!options_.sizes.known()) return;
    const LayerTime time = layer_time(counts, cluster_, options_.sizes, compute_of_pass_);
    (pass.prefill ? result_.prefill : result_.decode) += time;
    for (std::size_t d = 0; d < routers_.size(); ++d) result_.compute_of_device_s[d] += compute_of_pass_[d];
    if (record == nullptr) return;
    record->moe[layer_.idx()] = time;
    std::ranges::copy(compute_of_pass_, record->expert_compute_s.begin() +
                                            static_cast<std::ptrdiff_t>(layer_.idx() * routers_.size()));
  }

  LayerSimulation finish() {
    result_.figures = figures_.mean();
    result_.passes = figures_.batches();
    const double share = result_.passes == 0 ? 0 : 1 / static_cast<double>(result_.passes);
    const LayerTime sum = result_.time();
    result_.figures.time = {sum.cross_node_s * share, sum.intra_node_s * share, sum.latency_s * share,
                            sum.compute_s * share, sum.mean_compute_s * share};
    return std::move(result_);
  }

 private:
  // The call that begins with a source's token `begin`.
  void route(std::size_t device, std::span<const std::int64_t> tokens, std::size_t begin) {
    if (begin >= tokens.size()) return;
    const auto top_k = static_cast<std::size_t>(trace_.experts_per_token);
    const std::size_t count = std::min(kTokensPerCall, tokens.size() - begin);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t ahead = std::min(begin + i + kRowsAhead, tokens.size() - 1);
      __builtin_prefetch(trace_.choices(tokens[ahead], layer_).data());
      const std::span of_token = std::span(choices_).subspan(i * top_k, top_k);
      std::ranges::copy(trace_.choices(tokens[begin + i], layer_), of_token.begin());
      hold_to_partners(plan_, of_token, trace_.weights(tokens[begin + i], layer_));
    }
    const std::span choices = std::span(choices_).first(count * top_k);
    const std::span devices = std::span(device_of_choice_).first(count * top_k);
    routers_[device]->route(choices, trace_.experts_per_token, devices);
    counter_.add(DeviceId(static_cast<std::int32_t>(device)), choices, devices, trace_.experts_per_token);
  }

  const Trace& trace_;
  const LayerPlan& plan_;
  const MoeOrdinal layer_;
  const Cluster& cluster_;
  const SimulateOptions& options_;
  std::vector<std::unique_ptr<Router>> routers_;  // [D]
  BatchCounter counter_;
  FigureSum figures_;
  LayerSimulation result_;
  std::vector<std::uint16_t> choices_;          // of one call
  std::vector<std::int32_t> device_of_choice_;  // of one call
  std::vector<double> compute_of_pass_;         // [D]
};

// The parts that every device holds whole.
class DenseParts {
 public:
  DenseParts(const Cluster& cluster, const ModelPrice& model) : cluster_(cluster), model_(model) {
    for (const std::vector<Device>& of_node : cluster.devices_of_node)
      for (const Device& device : of_node) speeds_.push_back(device.speed);
    seconds_.resize(speeds_.size());
  }

  void pass(const Pass& pass, PhaseTime& time, PassRecord* record) {
    if (model_.layers.empty()) return;
    for (const DecoderLayerPrice& layer : model_.layers) {
      time.attention_s += part(layer.attention, pass, [&](const DeviceWork& work) {
        return Amount{static_cast<double>(work.tokens.size()),
                      layer.is_windowed ? work.windowed_keys : work.keys};
      });
      if (record != nullptr) append(record->attention_s);
      (layer.is_moe ? time.beside_experts_s : time.dense_ffn_s) +=
          part(layer.ffn, pass, [](const DeviceWork& work) {
            return Amount{static_cast<double>(work.tokens.size()), 0};
          });
      if (record != nullptr) append(record->ffn_s);
    }
    time.head_s += part(model_.head, pass, [](const DeviceWork& work) {
      return Amount{static_cast<double>(work.sequences), 0};
    });
    if (record != nullptr) append(record->head_s);
  }

 private:
  struct Amount {
    double tokens, keys;
  };

  // Fills seconds_; returns the slowest device's.
  template <typename AmountOf>
  double part(const PartPrice& price, const Pass& pass, AmountOf amount_of) {
    double slowest = 0;
    for (std::size_t d = 0; d < speeds_.size(); ++d) {
      const Amount amount = amount_of(pass.devices[d]);
      const double flops =
          price.flops_per_token * amount.tokens +
          (pass.prefill ? price.prefill_flops_per_key : price.decode_flops_per_key) * amount.keys;
      const double bytes = price.weight_bytes + (pass.prefill ? 0 : price.decode_bytes_per_key * amount.keys);
      const double seconds = std::max(flops / cluster_.flops_per_s, bytes / cluster_.memory_bytes_per_s);
      seconds_[d] = amount.tokens > 0 ? seconds / speeds_[d] : 0;
      slowest = std::max(slowest, seconds_[d]);
    }
    return slowest;
  }

  void append(std::vector<double>& to) const { to.insert(to.end(), seconds_.begin(), seconds_.end()); }

  const Cluster& cluster_;
  const ModelPrice& model_;
  std::vector<double> speeds_;   // [D]
  std::vector<double> seconds_;  // [D] of the last part
};

// The first prefill pass that has tokens and the first decode passes, [passes]: an index into records, or
// none.
std::vector<int> choose_records(const std::vector<Pass>& passes, const SimulateOptions& options,
                                std::size_t num_moe_layers, std::size_t num_devices,
                                std::vector<PassRecord>& records) {
  std::vector<int> record_of_pass(passes.size(), -1);
  int prefill_left = 1, decode_left = options.recorded_decode_passes;
  for (std::size_t p = 0; p < passes.size(); ++p) {
    int& left = passes[p].prefill ? prefill_left : decode_left;
    if (left <= 0 || tokens_of(passes[p]) == 0) continue;
    --left;
    record_of_pass[p] = static_cast<int>(records.size());
    PassRecord record;
    record.pass = static_cast<std::int64_t>(p);
    record.prefill = passes[p].prefill;
    record.moe.resize(num_moe_layers);
    record.expert_compute_s.assign(num_moe_layers * num_devices, 0);
    records.push_back(std::move(record));
  }
  return record_of_pass;
}

void check_model(const SimulateOptions& options, const Plan& plan) {
  const auto moe_layers = std::ranges::count_if(options.model.layers, &DecoderLayerPrice::is_moe);
  GRACE_CHECK(options.model.layers.empty() || moe_layers == plan.num_moe_layers(),
              "the model has the trace's MoE layers");
}

}  // namespace

LayerTime LayerSimulation::time() const {
  LayerTime sum = prefill;
  return sum += decode;
}

double PhaseTime::all_to_all_of_moe_layers() const {
  return moe_layers_s() > 0 ? moe.all_to_all_s() / moe_layers_s() : 0;
}

double PhaseTime::all_to_all_of_whole() const { return total_s() > 0 ? moe.all_to_all_s() / total_s() : 0; }

PhaseTime& PhaseTime::operator+=(const PhaseTime& other) {
  passes += other.passes;
  tokens += other.tokens;
  moe += other.moe;
  attention_s += other.attention_s;
  dense_ffn_s += other.dense_ffn_s;
  beside_experts_s += other.beside_experts_s;
  head_s += other.head_s;
  return *this;
}

PhaseTime Simulation::whole() const {
  PhaseTime sum = prefill;
  return sum += decode;
}

Result<Simulation> simulate(const Trace& trace, const Plan& plan, const Cluster& cluster,
                            const SimulateOptions& options, ThreadPool& pool) {
  GRACE_TRY(sim::check_workload(trace, plan, cluster, options.batch, options.workload));
  check_model(options, plan);
  const std::vector<Pass> passes =
      sim::passes_of(trace, options.batch, options.workload, cluster.num_devices(), options.model.window);
  const auto num_layers = static_cast<std::size_t>(plan.num_moe_layers());
  Simulation result;
  result.layers.resize(num_layers);
  const std::vector<int> record_of_pass = choose_records(
      passes, options, num_layers, static_cast<std::size_t>(cluster.num_devices()), result.records);
  const auto record_of = [&](std::size_t p) {
    return record_of_pass[p] < 0 ? nullptr : &result.records[static_cast<std::size_t>(record_of_pass[p])];
  };

  // Layers do not touch one another, so that the order of threads changes nothing.
  std::vector<Status> status(num_layers);
  std::atomic<std::int64_t> done = 0;
  pool.for_each(num_layers, [&](std::size_t m, int thread) {
    const MoeOrdinal layer(static_cast<std::int32_t>(m));
    auto routers = sim::make_routers(plan, layer, cluster);
    if (!routers.ok()) {
      status[m] = routers.error();
      return;
    }
    LayerRun run(trace, layer, plan, cluster, options, std::move(routers).value());
    for (std::size_t p = 0; p < passes.size(); ++p) run.pass(passes[p], record_of(p));
    result.layers[m] = run.finish();
    const std::int64_t layers_done = ++done;
    if (thread == 0 && options.progress) options.progress(layers_done, static_cast<std::int64_t>(num_layers));
  });
  for (const Status& of_layer : status) GRACE_TRY(of_layer);

  DenseParts dense(cluster, options.model);
  for (std::size_t p = 0; p < passes.size(); ++p) {
    const std::int64_t tokens = tokens_of(passes[p]);
    if (tokens == 0) continue;
    PhaseTime& time = passes[p].prefill ? result.prefill : result.decode;
    ++time.passes;
    time.tokens += tokens;
    dense.pass(passes[p], time, record_of(p));
  }
  for (const LayerSimulation& layer : result.layers) {
    result.prefill.moe += layer.prefill;
    result.decode.moe += layer.decode;
  }
  return result;
}

}  // namespace grace
