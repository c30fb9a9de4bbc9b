// The cheapest way to serve one token, found exactly: what certificates rest on, and what Cover is measured
// by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "grace/cluster/cluster.h"
#include "grace/planner/joint/routed_state.h"

namespace grace::joint {

// What a token pays is what it pays in Cover (routing/cover.h), in real numbers: node_cost for each node it
// enters, device_cost for each device but its own and the entries, and for each assignment the price of the
// device times the factor of the expert. By dynamic programming over the sets of a token's experts, device
// after device: 2^K * (devices that hold any + copies of them) steps. Thread-compatible.
class ExactCover {
 public:
  // Above this many experts a token's cost is a lower bound: that of as many of its experts, those of the
  // fewest hosts, and for each of the others its least price.
  static constexpr std::size_t kMaxExperts = 12;

  // REQUIRES: violations(cluster) is empty; hosts are [E, D] and hold every expert; costs are not negative.
  ExactCover(const Cluster& cluster, const Hosts& hosts, double node_cost, double device_cost);

  // prices [D] and factors [E] are not negative; factors that are empty are 1.
  void set_prices(std::span<const double> prices, std::span<const double> factors);

  // The least cost of serving the experts, distinct, from a source; device_of receives who serves each then.
  double route(std::span<const std::uint16_t> experts, std::size_t source, std::int32_t* device_of);

 private:
  // How a level, [2^K] costs of serving each set of the experts, came from earlier ones.
  struct Step {
    enum class Kind : std::uint8_t { kStart, kPay, kServe, kCheaper } kind;
    std::uint8_t expert;  // of serve: its place among the token's
    std::size_t from, other;
    std::int32_t device;
  };
  std::size_t append(Step step);
  std::size_t pay(std::size_t from, double cost);
  std::size_t serve(std::size_t from, std::span<const std::uint16_t> experts, std::size_t device);
  std::size_t cheaper(std::size_t one, std::size_t other);
  bool holds_any(std::span<const std::uint16_t> experts, std::size_t device) const;
  double route_few(std::span<const std::uint16_t> experts, std::size_t source, std::int32_t* device_of);
  double price(std::size_t expert, std::size_t device) const {
    return prices_[device] * (factors_.empty() ? 1 : factors_[expert]);
  }

  const Cluster& cluster_;
  const Hosts& hosts_;
  std::size_t devices_;
  double node_cost_, device_cost_;
  std::vector<double> prices_, factors_;
  std::vector<std::size_t> first_of_node_;  // [N + 1]
  std::vector<std::size_t> node_of_;        // [D]

  std::size_t sets_ = 1;  // 2^K
  std::vector<Step> steps_;
  std::vector<double> levels_;  // [steps, 2^K]
};

}  // namespace grace::joint
