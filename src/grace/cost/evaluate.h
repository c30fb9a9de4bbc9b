// The one evaluator: a routed batch of one layer on a cluster -> vectors, loads, yardsticks, seconds.
// Planner, simulator and comparison share it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grace/base/ids.h"
#include "grace/cluster/cluster.h"
#include "grace/cost/cost.h"
#include "grace/cost/objective.h"

namespace grace {

// What one batch of tokens does in one layer. Token t on device s uses the devices D_t.
//   two_stage:  across nodes one vector to each node of D_t but s's own, to the device there with s's local
//   index (modulo that node's size), the entry;
//               inside nodes one forward to each device of D_t but the node's entry (in its own node s
//               itself).
//   per_device: one vector to each device of D_t but s, across or inside nodes.   flat: one for each (token,
//   expert) off s.   padded: flat, from each device to each other as many as the longest of these messages.
//   allgather: one to every other device, also of a token without a choice.
// With reduced results the same vectors return in combine, with exact ones a vector for each (token, expert),
// over the same hops.
struct LinkVectors {
  std::vector<std::int64_t> node_out;    // [N] vectors that leave each node
  std::vector<std::int64_t> node_in;     // [N]
  std::vector<std::int64_t> device_out;  // [D] vectors sent inside the node
  std::vector<std::int64_t> device_in;   // [D]
};
struct BatchCounts : LinkVectors {  // of dispatch
  std::int64_t tokens = 0;          // with at least one choice
  std::int64_t assignments = 0;
  std::int64_t devices = 0;  // sum over tokens of |D_t|, the own device included where used
  std::int64_t entered_nodes =
      0;  // x of two_stage, whatever the dispatch: nodes of D_t but the own, summed over tokens
  std::int64_t forwards = 0;            // y of two_stage, likewise
  std::vector<std::int64_t> load;       // [D] assignments
  std::vector<std::int32_t> copy_load;  // [D, E] assignments of each copy
  // Of combine with exact results, each vector counted where its token's went: node_out is of the node that
  // it comes home to. Empty with reduced results.
  LinkVectors home;
};

// Counts batch after batch. Thread-compatible; allocates only when made.
class BatchCounter {
 public:
  // REQUIRES: violations(cluster) is empty.
  BatchCounter(const Cluster& cluster, int num_experts, Dispatch dispatch,
               Combine combine = Combine::kReduced);
  // Adds tokens of one source. choices and device_of_choice: [T, K], kNotChosen and kNoDevice.value where
  // nothing was chosen.
  void add(DeviceId source, std::span<const std::uint16_t> choices,
           std::span<const std::int32_t> device_of_choice, int experts_per_token);
  const BatchCounts& counts() const { return counts_; }
  void clear();

 private:
  void add_token(std::size_t source, std::span<const std::uint16_t> choices,
                 std::span<const std::int32_t> devices);
  void count_home(std::size_t source, std::size_t entry, std::size_t device);
  // One vector more, unless it stays where it is.
  void count_vector(std::size_t from, std::size_t to, LinkVectors& links) const;
  void count_everywhere(std::size_t source);
  void pad(std::size_t source, std::size_t device);

  Dispatch dispatch_;
  Combine combine_;
  std::size_t num_experts_;
  std::vector<std::int32_t> node_of_;      // [D]
  std::vector<std::int32_t> entry_;        // [D, N]: the device by which tokens of a source enter a node
  LinkVectors one_each_;                   // of padded: a vector from each device to each other
  std::vector<std::int64_t> messages_;     // [D, D] of padded: the vectors that are not padding
  std::int64_t longest_ = 0;               // of those
  std::vector<std::int64_t> last_device_;  // [D] the token that last used each device, from 1
  std::vector<std::int64_t> last_node_;    // [N]
  std::int64_t token_ = 0;
  BatchCounts counts_;
};

// Seconds of one layer for one batch. Dispatch and combine each take (max over nodes of max(in, out)) * b /
// B_inter + (max over devices of in) * b / B_intra, and the latency of each level that carries anything;
// compute is max over devices of sum over experts of max(tau_w * [n > 0], tau_f * n) / speed, with tau_w an
// expert's bytes over the memory's rate and tau_f the operations of an assignment over the device's.
struct LayerTime {
  double cross_node_s = 0;
  double intra_node_s = 0;
  double latency_s = 0;
  double compute_s = 0;       // of the slowest device
  double mean_compute_s = 0;  // over devices
  double all_to_all_s() const { return cross_node_s + intra_node_s + latency_s; }
  double total_s() const { return all_to_all_s() + compute_s; }
  double idle_s() const { return compute_s - mean_compute_s; }  // a device's mean wait for the slowest
  LayerTime& operator+=(const LayerTime& other);
};
// REQUIRES: sizes.known(). device_compute_s, where given, [D], receives each device's compute.
LayerTime layer_time(const BatchCounts& counts, const Cluster& cluster, const LayerSizes& sizes,
                     std::span<double> device_compute_s = {});

// Vectors that dispatch, or combine with exact results, moves in all.
std::int64_t cross_node_vectors(const LinkVectors& links);
std::int64_t intra_node_vectors(const LinkVectors& links);

// Means over the batches of one layer, or over layers: what a plan does.
struct Figures {
  double remote_nodes_per_token = 0;  // x
  double forwards_per_token = 0;      // y
  double devices_per_token = 0;
  double load_max_over_mean = 1;
  double load_std = 0;            // standard deviation of the load over devices, over its mean
  double cross_node_vectors = 0;  // a batch, dispatch alone
  double intra_node_vectors = 0;
  LayerTime time;  // zero where sizes are not known

  double judge(const Yardstick& yardstick) const {
    return yardstick.node * remote_nodes_per_token + yardstick.device * forwards_per_token +
           yardstick.load * load_max_over_mean;
  }
};

// Adds batches up and divides at the end: x, y and devices by tokens, the rest by batches. A batch without an
// assignment counts nowhere.
class FigureSum {
 public:
  void add(const BatchCounts& counts, const Cluster& cluster, const LayerSizes& sizes);
  std::int64_t batches() const { return batches_; }
  Figures mean() const;

 private:
  std::int64_t batches_ = 0;
  std::int64_t tokens_ = 0;
  std::int64_t entered_nodes_ = 0;
  std::int64_t forwards_ = 0;
  std::int64_t devices_ = 0;
  Figures sum_;
};
// The mean over layers, each counting alike; all zero for none.
Figures mean_of(std::span<const Figures> layers);

// The objective's value of figures: its yardstick, or seconds.
double value_of(const Figures& figures, Aim aim);

}  // namespace grace
