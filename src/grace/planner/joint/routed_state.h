// A placement with copies, its tokens routed by cover and price: changes of hosts re-route only the tokens
// they touch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "grace/cluster/cluster.h"
#include "grace/plan/plan.h"
#include "grace/planner/joint/search_tokens.h"
#include "grace/routing/cover.h"

namespace grace::joint {

// Who holds what: [E, D], 1 where the device has a copy.
using Hosts = std::vector<std::uint8_t>;
// Those of a plan's layer.
Hosts hosts_of(const LayerPlan& layer, int num_experts);

struct HostChange {
  std::uint16_t expert = 0;
  std::uint16_t device = 0;
  bool add = false;
};

// Value, to be lowered, per token: weights.node * x + weights.device * y + weights.load * (over + kSpread *
// squared deviation of work/mean), with `over` the mean over the sequences' random halves of max over devices
// of (work/mean + the half's load/mean - load/mean): max/mean as sequences like these will have it.
// Thread-compatible. Everything given must outlive it.
class RoutedState {
 public:
  RoutedState(const Cluster& cluster, const SearchTokens& tokens, const Weights& weights, const Hosts& hosts);

  double value() const { return value_; }
  // Of the routing as it is, without the term that only smooths the search: what the objective says.
  double objective() const;
  // Largest work over the mean.
  double max_over_mean() const;
  const Hosts& hosts() const { return hosts_; }
  bool is_host(std::size_t expert, std::size_t device) const {
    return hosts_[expert * devices_ + device] != 0;
  }
  // Assignments of the sample that the copy serves.
  std::int32_t copy_load(std::size_t expert, std::size_t device) const {
    return copy_load_[device * copies_.size() + expert];
  }
  int copies_of(std::size_t expert) const { return copies_[expert]; }
  std::size_t num_devices() const { return devices_; }
  std::span<const double> prices() const { return prices_; }
  std::span<const double> work() const { return work_; }
  // The device that serves each choice, as SearchTokens::experts.
  std::span<const std::int32_t> device_of() const { return device_of_; }

  // Applies changes and re-routes the tokens that lose their host or may gain by a new one; value() is then
  // the new one. Until commit() or rollback() no other call but value(). Gives up, with false and everything
  // as before, once the first part of the tokens shows that the value would rise by far more than `limit`.
  // REQUIRES: every expert keeps a host.
  bool try_changes(std::span<const HostChange> changes, double limit);
  void commit();
  void rollback();

  // Prices anew and every token routed anew.
  void set_prices(std::span<const double> prices);
  void set_hosts(const Hosts& hosts, std::span<const double> prices);
  // A step towards the prices that balance: those of devices above the mean rise, the others fall; all tokens
  // are routed anew.
  void step_prices(double step);
  // Prices after `steps` steps of falling size, the best of those seen kept.
  void fit_prices(int steps);

  // [D] expected assignments, scaled to the sample.
  std::vector<double> loads() const;

 private:
  struct Saved {
    std::uint32_t token;
    std::int16_t x, y;
    std::uint32_t first;  // in saved_devices_
  };
  void reroute_all();
  void reroute(std::size_t token, bool save);
  void account(std::size_t token, int sign);
  double value_now() const;
  double over_halves() const;
  void add_to_halves(std::size_t token, std::size_t device, int sign);
  // Whether the token's expert is served there now.
  bool serves(std::size_t token, std::uint16_t expert, std::size_t device) const;
  // Whether a new copy of the token's expert on the device could lower what the token pays now: a node or a
  // device less, or a lower price.
  bool may_gain(std::size_t token, std::uint16_t expert, std::size_t device) const;

  const SearchTokens& tokens_;
  const Weights& weights_;
  std::size_t devices_;
  double per_price_;  // price of an assignment when all devices are alike
  Cover cover_;
  Hosts hosts_;
  std::vector<int> copies_;                            // [E]
  std::vector<double> prices_;                         // [D]
  std::vector<std::vector<std::uint32_t>> tokens_of_;  // [E]
  std::vector<std::int32_t> device_of_;                // as SearchTokens::experts
  std::vector<std::int16_t> x_, y_;                    // [T]
  std::vector<std::int32_t> copy_load_;                // [D, E]
  std::vector<double> work_;                           // [D], over the speed
  double mean_work_ = 0;
  std::vector<std::int64_t> load_;                            // [D] assignments
  std::vector<std::array<std::int32_t, kHalves>> half_load_;  // [D] those of each half
  std::array<std::int64_t, kHalves> half_total_{};            // of all devices
  std::int64_t sum_x_ = 0, sum_y_ = 0;
  double value_ = 0;

  std::vector<HostChange> changes_;
  std::vector<Saved> saved_;
  std::vector<std::int32_t> saved_devices_;
  std::vector<double> saved_work_;
  std::vector<std::int64_t> saved_load_;
  std::vector<std::array<std::int32_t, kHalves>> saved_half_load_;
  std::int64_t saved_x_ = 0, saved_y_ = 0;
  double saved_value_ = 0;
  std::vector<std::uint32_t> mark_;  // [T] the try that last re-routed the token
  std::uint32_t try_ = 0;
};

}  // namespace grace::joint
