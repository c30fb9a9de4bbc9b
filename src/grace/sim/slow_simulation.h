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
#include "grace/sim/slow_traffic.h"
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
    if (options_.workload.prefill > 0) return run_workload();
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
      run_pass(fed, prefill);
    }
  }

  // One batch of prompts made of the sequences that have tokens, in turn, each read around in a circle.
  void run_workload() {
    std::vector<std::pair<std::int64_t, std::int64_t>> full;  // first token, length
    for (std::size_t s = 0; s + 1 < trace_.sequence_offsets.size(); ++s)
      if (const std::int64_t first = trace_.sequence_offsets[s]; trace_.sequence_offsets[s + 1] > first)
        full.emplace_back(first, trace_.sequence_offsets[s + 1] - first);
    for (int step = 0; step < options_.workload.decode; ++step) {
      std::vector<Fed> fed;
      for (int prompt = 0; prompt < options_.batch; ++prompt) {
        const auto& [first, length] = full[static_cast<std::size_t>(prompt) % full.size()];
        const int begin = step == 0 ? 0 : options_.workload.prefill + step - 1;
        for (int at = begin; at < options_.workload.prefill + step; ++at)
          fed.push_back({prompt % devices(), first + at % length, at, prompt});
      }
      run_pass(fed, step == 0);
    }
  }

  void run_pass(const std::vector<Fed>& fed, bool prefill) {
    ++phases_[prefill].passes;
    phases_[prefill].tokens += static_cast<std::int64_t>(fed.size());
    for (std::size_t m = 0; m < layers_.size(); ++m) run_layer(m, fed, prefill);
    run_dense(fed, prefill);
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
    slow::Sent sent, asked;                        // of dispatch, and of results that come home
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
      const std::vector<std::uint16_t> choices = slow::held_choices(trace_, plan_, m, one.token);
      std::vector<std::int32_t> chosen(choices.size());
      routers_[{m, one.device}]->route(choices, trace_.experts_per_token, chosen);
      std::set<int> used, nodes;
      if (options_.dispatch == Dispatch::kAllGather)
        for (int d = 0; d < devices(); ++d) ++sent[{one.device, d}];
      for (std::size_t k = 0; k < choices.size(); ++k) {
        if (chosen[k] < 0) continue;
        used.insert(chosen[k]);
        nodes.insert(node(chosen[k]));
        ++copies[{chosen[k], choices[k]}];
        ++load[chosen[k]];
        ++assignments;
        if (options_.dispatch == Dispatch::kFlat || options_.dispatch == Dispatch::kPadded)
          ++sent[{one.device, chosen[k]}];
        const int by = entry(one.device, node(chosen[k]));
        if (options_.dispatch == Dispatch::kTwoStage) ++asked[{one.device, by}];
        ++asked[{options_.dispatch == Dispatch::kTwoStage ? by : one.device, chosen[k]}];
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
    if (options_.dispatch == Dispatch::kPadded) slow::pad(sent, devices());
    if (options_.combine == Combine::kReduced || options_.dispatch == Dispatch::kPadded) asked = sent;
    sum.time[prefill] += time_of(sum, copies, slow::busiest(sent, cluster_), slow::busiest(asked, cluster_));
    for (const auto& [ends, vectors] : sent)
      if (ends.first != ends.second)
        (node(ends.first) == node(ends.second) ? sum.intra_vectors : sum.cross_vectors) += vectors;
    if (assignments == 0) return;
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
  }

  LayerTime time_of(Layer& sum, const std::map<std::pair<int, int>, double>& copies,
                    std::pair<double, double> there, std::pair<double, double> back) const {
    LayerTime time;
    for (const auto& [cross, intra] : {there, back}) {
      time.cross_node_s += cross * 64 / 1e8;
      time.intra_node_s += intra * 64 / 1e9;
      time.latency_s += (cross > 0 ? 7e-6 : 0) + (intra > 0 ? 2e-6 : 0);
    }
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
