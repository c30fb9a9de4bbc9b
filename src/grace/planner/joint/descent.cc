#include "grace/planner/joint/descent.h"

#include <algorithm>
#include <vector>

namespace grace::joint {
namespace {

constexpr int kPriceSteps = 24;

class Descent {
 public:
  Descent(RoutedState& state, std::span<const int> slots, std::span<const double> even_prices,
          std::size_t tries)
      : state_(state),
        even_prices_(even_prices),
        devices_(state.num_devices()),
        experts_(state.hosts().size() / devices_),
        tries_(tries),
        best_(state.hosts()),
        prices_(state.prices().begin(), state.prices().end()),
        value_(state.objective()) {
    for (std::size_t d = 0; d < devices_; ++d) {
      free_.push_back(slots[d]);
      for (std::size_t e = 0; e < experts_; ++e) free_.back() -= best_[e * devices_ + d];
    }
  }

  void run() {
    while (step()) {
    }
    state_.set_hosts(best_, prices_);
  }

 private:
  // Whether a neighbour was better.
  bool step() {
    for (std::size_t d = 0; d < devices_; ++d)
      for (std::size_t e = 0; e < experts_; ++e) {
        if (holds(e, d)) continue;
        if (free_[d] > 0 && adds(e, d)) return true;
        for (std::size_t f = 0; f < experts_; ++f)
          if (holds(f, d) && (copies(f) > 1 ? replaces(e, f, d) : exchanges(e, f, d))) return true;
      }
    return false;
  }

  bool holds(std::size_t e, std::size_t d) const { return best_[e * devices_ + d] != 0; }
  int copies(std::size_t e) const {
    return static_cast<int>(std::count(best_.begin() + static_cast<std::ptrdiff_t>(e * devices_),
                                       best_.begin() + static_cast<std::ptrdiff_t>((e + 1) * devices_),
                                       std::uint8_t{1}));
  }

  bool adds(std::size_t e, std::size_t d) {
    Hosts hosts = best_;
    hosts[e * devices_ + d] = 1;
    if (!lowers(hosts)) return false;
    --free_[d];
    return true;
  }
  bool replaces(std::size_t e, std::size_t f, std::size_t d) {
    Hosts hosts = best_;
    hosts[e * devices_ + d] = 1;
    hosts[f * devices_ + d] = 0;
    return lowers(hosts);
  }
  // e comes from another device, where the only copy of f goes; or f goes where there is room.
  bool exchanges(std::size_t e, std::size_t f, std::size_t d) {
    for (std::size_t g = 0; g < devices_; ++g) {
      if (g == d || (!holds(e, g) && free_[g] == 0)) continue;
      Hosts hosts = best_;
      hosts[e * devices_ + d] = 1;
      hosts[f * devices_ + d] = 0;
      hosts[f * devices_ + g] = 1;
      const bool leaves = holds(e, g) && free_[g] == 0;
      if (leaves) hosts[e * devices_ + g] = 0;
      if (!lowers(hosts)) continue;
      free_[g] -= leaves ? 0 : 1;
      return true;
    }
    return false;
  }

  bool lowers(const Hosts& hosts) {
    if (tries_ == 0) return false;
    --tries_;
    state_.set_hosts(hosts, even_prices_);
    state_.fit_prices(kPriceSteps);
    if (state_.objective() >= value_ * (1 - 1e-9)) return false;
    value_ = state_.objective();
    best_ = hosts;
    prices_.assign(state_.prices().begin(), state_.prices().end());
    return true;
  }

  RoutedState& state_;
  std::span<const double> even_prices_;
  std::size_t devices_, experts_;
  std::size_t tries_;
  Hosts best_;
  std::vector<double> prices_;
  double value_;
  std::vector<int> free_;  // [D]
};

}  // namespace

void descend(RoutedState& state, std::span<const int> slots, std::span<const double> even_prices,
             std::size_t tries) {
  Descent(state, slots, even_prices, tries).run();
}

}  // namespace grace::joint
