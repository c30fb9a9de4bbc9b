#include "grace/planner/joint/anneal.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace grace::joint {
namespace {

// Temperatures, as shares of the value.
constexpr double kHot = 1e-3;
constexpr double kCold = 2e-5;
constexpr std::size_t kProposalsPerPriceStep = 128;

class Annealer {
 public:
  Annealer(RoutedState& state, std::span<const int> slots, Rng rng)
      : state_(state),
        slots_(slots),
        devices_(state.num_devices()),
        experts_(state.hosts().size() / devices_),
        rng_(rng) {
    held_.resize(devices_);
    for (std::size_t e = 0; e < experts_; ++e)
      for (std::size_t d = 0; d < devices_; ++d)
        if (state.is_host(e, d)) held_[d].push_back(static_cast<std::uint16_t>(e));
  }

  // Proposes one change at a temperature; true if it was made.
  bool step(double temperature) {
    count_ = 0;
    propose();
    if (count_ == 0) return false;
    const double before = state_.value();
    // The rise that this proposal may have: drawn first, so that hopeless ones can be given up early.
    const double limit = temperature > 0 ? -temperature * std::log(1 - rng_.uniform()) : 0;
    if (!state_.try_changes({changes_.data(), count_}, limit)) return false;
    if (state_.value() - before > limit) {
      state_.rollback();
      return false;
    }
    state_.commit();
    for (std::size_t i = 0; i < count_; ++i) {
      std::vector<std::uint16_t>& held = held_[changes_[i].device];
      if (changes_[i].add)
        held.push_back(changes_[i].expert);
      else
        held.erase(std::ranges::find(held, changes_[i].expert));
    }
    return true;
  }

 private:
  void put(std::size_t expert, std::size_t device, bool add) {
    changes_[count_++] = {static_cast<std::uint16_t>(expert), static_cast<std::uint16_t>(device), add};
  }

  void propose() {
    const std::size_t g = rng_.below(devices_);
    const std::size_t f = rng_.below(experts_);
    if (state_.is_host(f, g)) return;
    const bool room = held_[g].size() < static_cast<std::size_t>(slots_[g]);
    if (held_[g].empty() || (room && rng_.below(2) == 0)) {
      if (!room) return;
      put(f, g, true);
      if (state_.copies_of(f) > 1 || rng_.below(2) == 0) return;
      put(f, host_of(f), false);  // relocated
      return;
    }
    const std::size_t e = held_[g][rng_.below(held_[g].size())];
    if (state_.copies_of(e) > 1 && rng_.below(16) == 0) {  // dropped
      put(e, g, false);
      return;
    }
    if (state_.copies_of(e) > 1 && rng_.below(3) != 0) {  // f in place of e
      put(e, g, false);
      put(f, g, true);
      return;
    }
    const std::size_t h = host_of(f);  // e and f change places
    if (state_.is_host(e, h)) return;
    put(e, g, false);
    put(f, h, false);
    put(f, g, true);
    put(e, h, true);
    std::swap(changes_[0], changes_[3]);  // an expert never is without a host
    std::swap(changes_[1], changes_[2]);
  }

  // A random host of an expert.
  std::size_t host_of(std::size_t expert) {
    std::size_t skip = rng_.below(static_cast<std::uint64_t>(state_.copies_of(expert)));
    for (std::size_t d = 0;; ++d)
      if (state_.is_host(expert, d) && skip-- == 0) return d;
  }

  RoutedState& state_;
  std::span<const int> slots_;
  std::size_t devices_, experts_;
  Rng rng_;
  std::vector<std::vector<std::uint16_t>> held_;  // [D]
  std::array<HostChange, 4> changes_;
  std::size_t count_ = 0;
};

}  // namespace

void anneal(RoutedState& state, std::span<const int> slots, std::size_t proposals, double heat, Rng rng) {
  if (state.num_devices() < 2 || proposals == 0) return;
  Annealer annealer(state, slots, rng);
  Hosts best = state.hosts();
  std::vector<double> best_prices(state.prices().begin(), state.prices().end());
  double best_value = state.value();
  const double hot = heat * kHot * state.value();
  const double cold = kCold * state.value();
  const auto keep_best = [&] {
    if (state.value() >= best_value) return;
    best_value = state.value();
    best = state.hosts();
    best_prices.assign(state.prices().begin(), state.prices().end());
  };
  for (std::size_t i = 0; i < proposals; ++i) {
    const double progress = static_cast<double>(i) / static_cast<double>(proposals);
    if (annealer.step(hot * std::pow(cold / hot, progress))) keep_best();
    if (i % kProposalsPerPriceStep == 0) {
      state.step_prices(0.2);
      keep_best();
    }
  }
  state.set_hosts(best, best_prices);
}

}  // namespace grace::joint
