// Cover and price: the cheapest set of devices that holds a token's experts. The policy `cover` and the
// search of the planner share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "grace/base/ids.h"
#include "grace/cluster/cluster.h"
#include "grace/plan/plan.h"

namespace grace {

// Experts per token that a Cover takes at most.
inline constexpr int kMaxExpertsPerToken = 64;
// A quarter shares what is nearly equal and opens no device that would not have been worth its cost.
inline constexpr double kSurcharge = 0.25;

// Who holds what in one layer, and what each choice costs. Hosts and prices may change at any time. A token
// pays CoverCosts: `node` for each node it enters beyond its own, `device` for each device but its own and
// the entries (the devices by which it enters nodes), and the price of the device for each assignment, and on
// it a surcharge of the token's own: by its set of experts alone up to kSurcharge of the mean price, or of
// the device cost where nothing has a price, another for each device. So what is as good as equal is shared
// by the devices, not all of it taken by one of them: prices alone cannot divide a tie. Nodes are opened for
// experts that the own node lacks, the one that holds most of them first; then devices, best saving first;
// then what no longer pays is closed; ties to the lower id. Within 1 % of the cheapest cover on real routing.
// Costs are whole numbers inside, 1/4096 of a sixteenth of the dearest, so that the same input gives the same
// route on every machine. Thread-compatible; const calls may run at the same time.
class Cover {
 public:
  // No expert has a host yet. REQUIRES: violations(cluster) is empty, num_experts >= 1, costs finite and not
  // negative.
  Cover(const Cluster& cluster, int num_experts, const CoverCosts& costs);

  void set_host(ExpertId expert, DeviceId device, bool hosts);
  bool is_host(ExpertId expert, DeviceId device) const {
    return hosts_[expert.idx() * devices_ + device.idx()] != 0;
  }
  // [D], in the unit of the costs given at the making.
  void set_prices(std::span<const double> prices);

  struct Visit {
    int nodes = 0;    // x: nodes entered beyond the own
    int devices = 0;  // y: devices used that are neither the own nor an entry
  };
  // device_of: receives the device that serves each expert. REQUIRES: the experts are distinct, each has a
  // host, and they are at most kMaxExpertsPerToken.
  Visit route(std::span<const std::uint16_t> experts, std::size_t source, std::int32_t* device_of) const;

  // What the token pays for each expert that the device serves: its price and the token's surcharge.
  double price(std::span<const std::uint16_t> experts, std::size_t device) const;

  // For tests: at most eight devices and experts have a faster way of their own, which must give the same
  // routes.
  void set_always_general(bool always) { always_general_ = always; }

  std::size_t num_devices() const { return devices_; }
  std::size_t num_nodes() const { return nodes_; }
  std::size_t node_of(std::size_t device) const { return static_cast<std::size_t>(node_of_[device]); }
  // The device by which tokens of `source` enter `node`: itself in its own.
  std::size_t entry(std::size_t source, std::size_t node) const {
    return static_cast<std::size_t>(entry_[source * nodes_ + node]);
  }

 private:
  void fill_row(std::size_t expert);
  // [lanes] of surcharges_ that the set of experts pays.
  const std::int32_t* surcharges_of(std::span<const std::uint16_t> experts) const;

  std::size_t devices_, nodes_, experts_;
  std::size_t lanes_;  // devices, rounded up to whole vectors
  bool always_general_ = false;
  double unit_;  // what one is, in the unit of the costs
  std::int32_t device_cost_;
  std::int32_t lowest_price_ = 0;
  std::vector<std::int32_t> node_of_;     // [D]
  std::vector<std::int32_t> entry_;       // [D, N]
  std::vector<std::uint8_t> hosts_;       // [E, D]
  std::vector<std::int32_t> price_;       // [D]
  std::vector<std::int32_t> row_;         // [E, lanes]: the price on a host, else far
  std::vector<std::uint8_t> node_hosts_;  // [E, N]: whether a device of the node is a host
  std::vector<std::int32_t> node_price_;  // [E, N]: the least price there
  std::vector<std::int32_t> surcharges_;  // [kSurcharges, lanes]
  std::vector<std::int32_t>
      opening_;  // [D sources, N, lanes]: cost of opening a device of that node, never for those of others
};

}  // namespace grace
