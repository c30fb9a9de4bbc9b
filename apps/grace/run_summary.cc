#include "run_summary.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace grace::app {
namespace {

// Steps [first, last) of a record. REQUIRES: every rank has as many steps, every step as many layers.
class Phase {
 public:
  Phase(const RunRecord& record, std::size_t first, std::size_t last)
      : record_(record), first_(first), last_(last) {}

  PhaseSummary summary() const {
    PhaseSummary sum;
    for (std::size_t step = first_; step < last_; ++step) {
      add_clock(step, sum);
      for (std::size_t layer = 0; layer < layers(); ++layer) {
        add_critical_path(step, layer, sum);
        add_busiest_node(step, layer, sum);
      }
    }
    add_loads(sum);
    return sum;
  }

 private:
  std::size_t ranks() const { return record_.steps.size(); }
  std::size_t layers() const { return first_ < last_ ? record_.steps[0][first_].size() : 0; }
  const LayerCounters& at(std::size_t rank, std::size_t step, std::size_t layer) const {
    return record_.steps[rank][step][layer];
  }

  void add_clock(std::size_t step, PhaseSummary& sum) const {
    double exchange = 0, longest_wait = 0, shortest_wait = std::numeric_limits<double>::max(), whole = 0;
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      double exchange_here = 0, wait_here = 0, work_here = 0;
      for (const LayerCounters& one : record_.steps[rank][step]) {
        sum.dispatch += one.dispatch;
        sum.combine += one.combine;
        exchange_here += one.dispatch_s + one.combine_s;
        wait_here += one.wait_s;
        work_here += one.gate_s + one.experts_s;
      }
      exchange = std::max(exchange, exchange_here);
      longest_wait = std::max(longest_wait, wait_here);
      shortest_wait = std::min(shortest_wait, wait_here);
      whole = std::max(whole, work_here + exchange_here);
    }
    sum.all_to_all_s += exchange;
    sum.idle_s += longest_wait - shortest_wait;
    sum.moe_s += whole;
  }

  double most(std::size_t step, std::size_t layer, double LayerCounters::*seconds) const {
    double highest = at(0, step, layer).*seconds;
    for (std::size_t rank = 1; rank < ranks(); ++rank)
      highest = std::max(highest, at(rank, step, layer).*seconds);
    return highest;
  }

  void add_critical_path(std::size_t step, std::size_t layer, PhaseSummary& sum) const {
    const auto latest = [&](double LayerCounters::*seconds) { return most(step, layer, seconds); };
    const double exchange = latest(&LayerCounters::dispatch_end_s) -
                            latest(&LayerCounters::dispatch_begin_s) + latest(&LayerCounters::combine_end_s) -
                            latest(&LayerCounters::combine_begin_s);
    const double experts = latest(&LayerCounters::experts_cpu_s);
    sum.exchange_s += exchange;
    sum.experts_s += experts;
    sum.critical_s +=
        latest(&LayerCounters::gate_cpu_s) + experts + latest(&LayerCounters::pack_cpu_s) + exchange;
  }

  void add_busiest_node(std::size_t step, std::size_t layer, PhaseSummary& sum) const {
    for (const auto exchange : {&LayerCounters::dispatch, &LayerCounters::combine}) {
      std::int64_t busiest = 0;
      std::size_t rank = 0;
      for (const int devices : record_.devices_per_node) {
        std::int64_t sent = 0;
        for (int d = 0; d < devices; ++d, ++rank) {
          const LevelBytes& bytes = at(rank, step, layer).*exchange;
          sent += bytes.cross_node_payload + bytes.cross_node_header;
        }
        busiest = std::max(busiest, sent);
      }
      sum.busiest_node_bytes += busiest;
    }
  }

  void add_loads(PhaseSummary& sum) const {
    if (layers() == 0) return;
    const auto num_layers = static_cast<double>(layers());
    sum.load_max_over_mean = 0;
    for (std::size_t layer = 0; layer < layers(); ++layer) {
      std::vector<std::int64_t> load(ranks(), 0);
      std::int64_t total = 0;
      for (std::size_t rank = 0; rank < ranks(); ++rank)
        for (std::size_t step = first_; step < last_; ++step) load[rank] += at(rank, step, layer).assignments;
      for (const std::int64_t value : load) total += value;
      const double mean = static_cast<double>(total) / static_cast<double>(ranks());
      if (mean > 0) sum.load_deviation += standard_deviation(load) / mean / num_layers;
      sum.load_max_over_mean += max_over_mean(load) / num_layers;
    }
  }

  const RunRecord& record_;
  std::size_t first_, last_;
};

}  // namespace

std::int64_t PhaseSummary::cross_node_bytes() const {
  return dispatch.cross_node_payload + dispatch.cross_node_header + combine.cross_node_payload +
         combine.cross_node_header;
}

std::int64_t PhaseSummary::intra_node_bytes() const {
  return dispatch.intra_node_payload + dispatch.intra_node_header + combine.intra_node_payload +
         combine.intra_node_header;
}

RunSummary summarise(const RunRecord& record) {
  const std::size_t steps = record.steps.empty() ? 0 : record.steps[0].size();
  const std::size_t first_decode = steps - std::min(steps, static_cast<std::size_t>(record.decode_steps));
  return {Phase(record, 0, steps).summary(), Phase(record, 0, first_decode).summary(),
          Phase(record, first_decode, steps).summary()};
}

}  // namespace grace::app
