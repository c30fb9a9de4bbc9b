#include "grace/planner/joint/descent.h"

#include <algorithm>
#include <vector>

namespace grace::joint {
namespace {

constexpr int kPriceSteps = 24;
// After so few steps a neighbour that will be better is not this much worse.
constexpr int kFirstSteps = 6;
constexpr double kHopeless = 1.04;
// Random changes that lead out of a placement without better neighbours.
constexpr int kKicks = 3;

class Descent {
 public:
  Descent(RoutedState& state, std::span<const int> slots, std::span<const double> even_prices,
          std::size_t tries, Rng rng)
      : state_(state),
        even_prices_(even_prices),
        devices_(state.num_devices()),
        experts_(state.hosts().size() / devices_),
        slots_(slots),
        steps_left_(static_cast<std::int64_t>(tries) * kPriceSteps),
        rng_(rng),
        here_{state.hosts(), {state.prices().begin(), state.prices().end()}, state.objective()} {}

  void run() {
    Found best = here_;
    while (true) {
      while (step()) {
      }
      if (here_.value < best.value) best = here_;
      if (steps_left_ <= 0) break;
      here_ = best;
      kick();
    }
    state_.set_hosts(best.hosts, best.prices);
  }

 private:
  // Whether a neighbour was better.
  bool step() {
    for (std::size_t d = 0; d < devices_; ++d)
      for (std::size_t e = 0; e < experts_; ++e) {
        if (holds(e, d)) continue;
        if (free(d) > 0 && adds(e, d)) return true;
        for (std::size_t f = 0; f < experts_; ++f)
          if (holds(f, d) && (copies(f) > 1 ? replaces(e, f, d) : exchanges(e, f, d))) return true;
      }
    for (std::size_t d = 0; d < devices_; ++d)
      for (std::size_t g = 0; g < d; ++g)
        if (slots_[d] == slots_[g] && trades(d, g)) return true;
    return false;
  }

  bool holds(std::size_t e, std::size_t d) const { return here_.hosts[e * devices_ + d] != 0; }
  int copies(std::size_t e) const {
    const auto* row = &here_.hosts[e * devices_];
    return static_cast<int>(std::count(row, row + devices_, std::uint8_t{1}));
  }
  int free(std::size_t d) const {
    int free = slots_[d];
    for (std::size_t e = 0; e < experts_; ++e) free -= here_.hosts[e * devices_ + d];
    return free;
  }

  bool adds(std::size_t e, std::size_t d) {
    Hosts hosts = here_.hosts;
    hosts[e * devices_ + d] = 1;
    return lowers(hosts);
  }
  bool replaces(std::size_t e, std::size_t f, std::size_t d) {
    Hosts hosts = here_.hosts;
    hosts[e * devices_ + d] = 1;
    hosts[f * devices_ + d] = 0;
    return lowers(hosts);
  }
  // e comes from another device, where the only copy of f goes; or f goes where there is room.
  bool exchanges(std::size_t e, std::size_t f, std::size_t d) {
    for (std::size_t g = 0; g < devices_; ++g) {
      const bool room = free(g) > 0;
      if (g == d || (!holds(e, g) && !room)) continue;
      if (lowers(exchanged(e, f, d, g, !room))) return true;
    }
    return false;
  }
  // e to d instead of f, which goes to g; e leaves g where it must.
  Hosts exchanged(std::size_t e, std::size_t f, std::size_t d, std::size_t g, bool leaves) const {
    Hosts hosts = here_.hosts;
    hosts[e * devices_ + d] = 1;
    hosts[f * devices_ + d] = 0;
    hosts[f * devices_ + g] = 1;
    if (leaves) hosts[e * devices_ + g] = 0;
    return hosts;
  }

  // Two devices exchange all that they hold: no way leads there by single experts.
  bool trades(std::size_t d, std::size_t g) {
    Hosts hosts = here_.hosts;
    for (std::size_t e = 0; e < experts_; ++e) std::swap(hosts[e * devices_ + d], hosts[e * devices_ + g]);
    return lowers(hosts);
  }

  bool lowers(const Hosts& hosts) {
    if (steps_left_ <= 0) return false;
    state_.set_hosts(hosts, even_prices_);
    fit(kFirstSteps);
    if (state_.objective() >= here_.value * kHopeless) return false;
    state_.set_prices(even_prices_);
    fit(kPriceSteps);
    if (state_.objective() >= here_.value * (1 - 1e-9)) return false;
    go_on_from(hosts);
    return true;
  }
  void fit(int steps) {
    state_.fit_prices(steps);
    steps_left_ -= steps;
  }
  void go_on_from(const Hosts& hosts) {
    here_ = {hosts, {state_.prices().begin(), state_.prices().end()}, state_.objective()};
  }

  // Two experts on two devices change places, a few times over.
  void kick() {
    Hosts hosts = here_.hosts;
    for (int i = 0; i < kKicks; ++i) {
      const std::size_t d = rng_.below(devices_), g = rng_.below(devices_);
      const std::size_t e = rng_.below(experts_), f = rng_.below(experts_);
      const auto at = [&](std::size_t expert, std::size_t device) -> std::uint8_t& {
        return hosts[expert * devices_ + device];
      };
      if (at(e, d) == 0 || at(f, g) == 0 || at(e, g) != 0 || at(f, d) != 0) continue;
      std::swap(at(e, d), at(e, g));
      std::swap(at(f, g), at(f, d));
    }
    state_.set_hosts(hosts, even_prices_);
    fit(kPriceSteps);
    go_on_from(hosts);
  }

  struct Found {
    Hosts hosts;
    std::vector<double> prices;
    double value;
  };

  RoutedState& state_;
  std::span<const double> even_prices_;
  std::size_t devices_, experts_;
  std::span<const int> slots_;
  std::int64_t steps_left_;
  Rng rng_;
  Found here_;
};

}  // namespace

void descend(RoutedState& state, std::span<const int> slots, std::span<const double> even_prices,
             std::size_t tries, Rng rng) {
  Descent(state, slots, even_prices, tries, rng).run();
}

}  // namespace grace::joint
