// The simulation's slow twin, for tests: it shares nothing with the program but the routers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "grace/routing/routing.h"
#include "grace/sim/simulate.h"
#include "grace/sim/test_workload.h"

namespace grace {

// Of some_options() on a timed_cluster(): cursors in place of passes, sets in place of counters, and the
// published formula. Only the routers are the program's own.
class SlowSimulation {
 public:
  SlowSimulation(const Trace& trace, const Plan& plan, const Cluster& cluster, const SimulateOptions& options)
      : trace_(trace), plan_(plan), cluster_(cluster), options_(options), layers_(plan.layers.size()) {
    for (std::size_t m = 0; m < layers_.size(); ++m)
      for (int d = 0; d < devices(); ++d)
        routers_[{m, d}] =
            make_router(plan.routing, plan.layers[m], plan.num_experts, cluster, DeviceId(d)).value();
    for (Layer& layer : layers_) {
      layer.load.assign(static_cast<std::size_t>(devices()), 0);
      layer.compute_s = std::vector<double>(static_cast<std::size_t>(devices()), 0);
    }
  }

  struct Layer {
    double passes = 0, tokens = 0, x = 0, y = 0, used = 0, max_over_mean = 0, deviation = 0;
    double cross_vectors = 0, intra_vectors = 0;
    std::map<bool, LayerTime> time;  // by prefill
    std::vector<std::int64_t> load;
    std::vector<double> compute_s;
  };
  struct Fed {
    int device;
    std::int64_t token, position;
    int sequence;
  };

  void run() {
    const int batch = options_.batch == 0 ? trace_.num_sequences() : options_.batch;
    for (int begin = 0; begin < trace_.num_sequences(); begin += batch)
      run_batch(begin, std::min(begin + batch, trace_.num_sequences()));
  }

  std::vector<Layer> layers() const { return layers_; }
  std::map<bool, PhaseTime> phases() const { return phases_; }

 private:
  int devices() const { return cluster_.num_devices(); }
  int node(int device) const { return cluster_.node_of(DeviceId(device)).value; }
  int entry(int source, int to_node) const {
    const int size = static_cast<int>(cluster_.devices_of_node[static_cast<std::size_t>(to_node)].size());
    return cluster_.first_device_of(NodeId(to_node)).value + cluster_.local_index_of(DeviceId(source)) % size;
  }

  void run_batch(int begin, int end) {
    std::vector<std::int64_t> left, at;
    for (int s = begin; s < end; ++s) {
      at.push_back(trace_.sequence_offsets[static_cast<std::size_t>(s)]);
      left.push_back(trace_.sequence_offsets[static_cast<std::size_t>(s) + 1] - at.back());
    }
    for (bool prefill = true;; prefill = false) {
      std::vector<Fed> fed;
      for (int s = begin; s < end; ++s) {
        const auto i = static_cast<std::size_t>(s - begin);
        const std::int64_t wanted = prefill ? trace_.prompt_lengths[static_cast<std::size_t>(s)] : 1;
        for (std::int64_t n = 0; n < wanted && left[i] > 0; ++n, --left[i], ++at[i])
          fed.push_back({(s - begin) % devices(), at[i],
                         at[i] - trace_.sequence_offsets[static_cast<std::size_t>(s)], s});
      }
      if (fed.empty() && !prefill) return;
      if (fed.empty()) continue;
      ++phases_[prefill].passes;
      phases_[prefill].tokens += static_cast<std::int64_t>(fed.size());
      for (std::size_t m = 0; m < layers_.size(); ++m) run_layer(m, fed, prefill);
      run_dense(fed, prefill);
    }
  }

  // Devices run side by side: 32 tokens of each, then the next 32, with the round each is in.
  std::vector<std::pair<int, Fed>> in_rounds(const std::vector<Fed>& fed) const {
    std::map<int, int> so_far;
    std::map<std::pair<int, int>, std::vector<Fed>> rounds;  // round, device
    for (const Fed& one : fed) rounds[{so_far[one.device]++ / 32, one.device}].push_back(one);
    std::vector<std::pair<int, Fed>> order;
    for (const auto& [key, tokens] : rounds)
      for (const Fed& one : tokens) order.emplace_back(key.first, one);
    return order;
  }

  void run_layer(std::size_t m, const std::vector<Fed>& fed, bool prefill) {
    std::map<std::pair<int, int>, double> copies;  // device, expert -> assignments
    std::map<std::pair<int, int>, double> sent;    // from, to -> vectors
    std::map<int, double> node_out, node_in, device_in;
    std::map<int, double> load;
    Layer& sum = layers_[m];
    double assignments = 0;
    const auto order = in_rounds(fed);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto& [round, one] = order[i];
      if (i == 0 || round != order[i - 1].first) {
        std::vector<std::int64_t> so_far;
        for (int d = 0; d < devices(); ++d) so_far.push_back(static_cast<std::int64_t>(load[d]));
        for (int d = 0; d < devices(); ++d)
          routers_[{m, d}]->observe(so_far, static_cast<std::int64_t>(fed.size()) * trace_.experts_per_token);
      }
      const auto choices = trace_.choices(one.token, MoeOrdinal(static_cast<std::int32_t>(m)));
      std::vector<std::int32_t> chosen(choices.size());
      routers_[{m, one.device}]->route(choices, trace_.experts_per_token, chosen);
      std::set<int> used, nodes;
      for (std::size_t k = 0; k < choices.size(); ++k) {
        if (chosen[k] < 0) continue;
        used.insert(chosen[k]);
        nodes.insert(node(chosen[k]));
        ++copies[{chosen[k], choices[k]}];
        ++load[chosen[k]];
        ++assignments;
        if (options_.dispatch == Dispatch::kFlat) ++sent[{one.device, chosen[k]}];
      }
      if (used.empty()) continue;
      ++sum.tokens;
      sum.used += static_cast<double>(used.size());
      nodes.erase(node(one.device));
      sum.x += static_cast<double>(nodes.size());
      for (const int to : nodes)
        if (options_.dispatch == Dispatch::kTwoStage) ++sent[{one.device, entry(one.device, to)}];
      for (const int to : used) {
        const int from = entry(one.device, node(to));
        sum.y += from != to ? 1 : 0;
        if (options_.dispatch == Dispatch::kTwoStage) ++sent[{from, to}];
        if (options_.dispatch == Dispatch::kPerDevice) ++sent[{one.device, to}];
      }
    }
    if (assignments == 0) return;
    for (const auto& [ends, vectors] : sent) {
      const auto& [from, to] = ends;
      if (from == to) continue;
      if (node(from) == node(to)) {
        device_in[to] += vectors;
        sum.intra_vectors += vectors;
      } else {
        node_out[node(from)] += vectors;
        node_in[node(to)] += vectors;
        sum.cross_vectors += vectors;
      }
    }
    ++sum.passes;
    const double mean = assignments / devices();
    double most = 0, squares = 0;
    for (int d = 0; d < devices(); ++d) {
      most = std::max(most, load[d]);
      squares += (load[d] - mean) * (load[d] - mean);
      sum.load[static_cast<std::size_t>(d)] += static_cast<std::int64_t>(load[d]);
    }
    sum.max_over_mean += most / mean;
    sum.deviation += std::sqrt(squares / devices()) / mean;
    sum.time[prefill] += time_of(sum, copies, node_out, node_in, device_in);
  }

  LayerTime time_of(Layer& sum, const std::map<std::pair<int, int>, double>& copies,
                    const std::map<int, double>& node_out, const std::map<int, double>& node_in,
                    const std::map<int, double>& device_in) const {
    const auto highest = [](const std::map<int, double>& of) {
      double most = 0;
      for (const auto& [key, value] : of) most = std::max(most, value);
      return most;
    };
    const double cross = std::max(highest(node_out), highest(node_in)), intra = highest(device_in);
    LayerTime time;
    time.cross_node_s = 2 * cross * 64 / 1e8;
    time.intra_node_s = 2 * intra * 64 / 1e9;
    time.latency_s = (cross > 0 ? 14e-6 : 0) + (intra > 0 ? 4e-6 : 0);
    std::map<int, double> compute;
    for (const auto& [copy, n] : copies)
      compute[copy.first] += std::max(3 * 32 * 16 * 2 / 1e9, n * 2 * 3 * 32 * 16 / 1e10) /
                             cluster_.device(DeviceId(copy.first)).speed;
    for (const auto& [d, seconds] : compute) {
      sum.compute_s[static_cast<std::size_t>(d)] += seconds;
      time.compute_s = std::max(time.compute_s, seconds);
      time.mean_compute_s += seconds / devices();
    }
    return time;
  }

  void run_dense(const std::vector<Fed>& fed, bool prefill) {
    std::map<int, double> tokens, keys, windowed;
    std::map<int, std::set<int>> sequences;
    for (const Fed& one : fed) {
      ++tokens[one.device];
      keys[one.device] += static_cast<double>(one.position + 1);
      windowed[one.device] += std::min(4.0, static_cast<double>(one.position + 1));
      sequences[one.device].insert(one.sequence);
    }
    const auto slowest = [&](auto&& seconds) {
      double most = 0;
      for (const auto& [d, n] : tokens)
        most = std::max(most, seconds(d) / cluster_.device(DeviceId(d)).speed);
      return most;
    };
    const auto attention = [&](std::map<int, double>& seen) {
      return slowest([&](int d) {
        const double flops = 3e5 * tokens[d] + (prefill ? 40 : 90) * seen[d];
        return std::max(flops / 1e10, (2e5 + (prefill ? 0 : 17 * seen[d])) / 1e9);
      });
    };
    PhaseTime& phase = phases_[prefill];
    phase.attention_s += 3 * attention(keys) + 2 * attention(windowed);
    phase.dense_ffn_s += 2 * slowest([&](int d) { return std::max(7e5 * tokens[d] / 1e10, 4e5 / 1e9); });
    phase.beside_experts_s += 3 * slowest([&](int d) { return std::max(1e4 * tokens[d] / 1e10, 3e3 / 1e9); });
    phase.head_s += slowest(
        [&](int d) { return std::max(5e6 * static_cast<double>(sequences[d].size()) / 1e10, 3e6 / 1e9); });
  }

  const Trace& trace_;
  const Plan& plan_;
  const Cluster& cluster_;
  const SimulateOptions& options_;
  std::map<std::pair<std::size_t, int>, std::unique_ptr<Router>> routers_;
  std::vector<Layer> layers_;
  std::map<bool, PhaseTime> phases_;
};

}  // namespace grace
