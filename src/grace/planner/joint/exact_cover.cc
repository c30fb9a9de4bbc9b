#include "grace/planner/joint/exact_cover.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "grace/base/check.h"
#include "grace/routing/cover.h"

namespace grace::joint {

ExactCover::ExactCover(const Cluster& cluster, const Hosts& hosts, double node_cost, double device_cost)
    : cluster_(cluster),
      hosts_(hosts),
      devices_(static_cast<std::size_t>(cluster.num_devices())),
      node_cost_(node_cost),
      device_cost_(device_cost),
      prices_(devices_, 0) {
  for (std::size_t n = 0; n < cluster.devices_of_node.size(); ++n) {
    first_of_node_.push_back(node_of_.size());
    node_of_.resize(node_of_.size() + cluster.devices_of_node[n].size(), n);
  }
  first_of_node_.push_back(devices_);
}

void ExactCover::set_prices(std::span<const double> prices, std::span<const double> factors) {
  GRACE_CHECK(prices.size() == devices_, "a price for each device");
  prices_.assign(prices.begin(), prices.end());
  factors_.assign(factors.begin(), factors.end());
}

std::size_t ExactCover::append(Step step) {
  steps_.push_back(step);
  if (levels_.size() < steps_.size() * sets_) levels_.resize(2 * steps_.size() * sets_);
  return steps_.size() - 1;
}

std::size_t ExactCover::pay(std::size_t from, double cost) {
  const std::size_t to = append({Step::Kind::kPay, 0, from, from, -1});
  const double* old = &levels_[from * sets_];
  double* level = &levels_[to * sets_];
  for (std::size_t s = 0; s < sets_; ++s) level[s] = old[s] + cost;
  return to;
}

// Whoever of the experts the device holds may be served there.
std::size_t ExactCover::serve(std::size_t from, std::span<const std::uint16_t> experts, std::size_t device) {
  for (std::size_t k = 0; k < experts.size(); ++k) {
    if (hosts_[experts[k] * devices_ + device] == 0) continue;
    const std::size_t to = append(
        {Step::Kind::kServe, static_cast<std::uint8_t>(k), from, from, static_cast<std::int32_t>(device)});
    const double cost = price(experts[k], device);
    const double* old = &levels_[from * sets_];
    double* level = &levels_[to * sets_];
    const std::size_t bit = std::size_t{1} << k;
    for (std::size_t high = 0; high < sets_; high += 2 * bit)
      for (std::size_t s = high; s < high + bit; ++s) {
        level[s] = old[s];
        level[s + bit] = std::min(old[s + bit], old[s] + cost);
      }
    from = to;
  }
  return from;
}

std::size_t ExactCover::cheaper(std::size_t one, std::size_t other) {
  const std::size_t to = append({Step::Kind::kCheaper, 0, one, other, -1});
  const double* a = &levels_[one * sets_];
  const double* b = &levels_[other * sets_];
  double* level = &levels_[to * sets_];
  for (std::size_t s = 0; s < sets_; ++s) level[s] = std::min(a[s], b[s]);
  return to;
}

bool ExactCover::holds_any(std::span<const std::uint16_t> experts, std::size_t device) const {
  return std::ranges::any_of(experts, [&](std::uint16_t e) { return hosts_[e * devices_ + device] != 0; });
}

double ExactCover::route_few(std::span<const std::uint16_t> experts, std::size_t source,
                             std::int32_t* device_of) {
  sets_ = std::size_t{1} << experts.size();
  steps_.clear();
  std::size_t now = append({Step::Kind::kStart, 0, 0, 0, -1});
  std::fill_n(levels_.begin(), sets_, std::numeric_limits<double>::infinity());
  levels_[0] = 0;
  const std::size_t own = node_of_[source];
  const std::size_t local = source - first_of_node_[own];
  for (std::size_t n = 0; n + 1 < first_of_node_.size(); ++n) {
    const std::size_t begin = first_of_node_[n], end = first_of_node_[n + 1];
    const std::size_t entry = begin + local % (end - begin);
    std::size_t inside = now;
    for (std::size_t d = begin; d < end; ++d) {
      if (!holds_any(experts, d)) continue;
      if (inside == now && n != own) inside = pay(now, node_cost_);
      inside = d == entry ? serve(inside, experts, d)
                          : cheaper(inside, serve(pay(inside, device_cost_), experts, d));
    }
    now = n == own || inside == now ? inside : cheaper(now, inside);
  }
  const double cost = levels_[now * sets_ + sets_ - 1];
  GRACE_CHECK(cost < std::numeric_limits<double>::infinity(), "every expert has a host");

  // Back along the levels that gave the cost.
  std::size_t set = sets_ - 1;
  for (std::size_t at = now; steps_[at].kind != Step::Kind::kStart;) {
    const Step& step = steps_[at];
    const bool from_first = levels_[at * sets_ + set] == levels_[step.from * sets_ + set];
    if (step.kind == Step::Kind::kServe && !from_first) {
      device_of[step.expert] = step.device;
      set &= ~(std::size_t{1} << step.expert);
    }
    at = step.kind == Step::Kind::kCheaper && !from_first ? step.other : step.from;
  }
  return cost;
}

double ExactCover::route(std::span<const std::uint16_t> experts, std::size_t source,
                         std::int32_t* device_of) {
  if (experts.size() <= kMaxExperts) return route_few(experts, source, device_of);
  GRACE_CHECK(experts.size() <= kMaxExpertsPerToken, "too many experts for one token");
  std::array<std::size_t, kMaxExpertsPerToken> order, copies;
  for (std::size_t k = 0; k < experts.size(); ++k) {
    order[k] = k;
    const std::uint8_t* row = &hosts_[experts[k] * devices_];
    copies[k] = static_cast<std::size_t>(std::accumulate(row, row + devices_, 0));
  }
  std::stable_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(experts.size()),
                   [&](std::size_t a, std::size_t b) { return copies[a] < copies[b]; });
  std::array<std::uint16_t, kMaxExperts> few;
  std::array<std::int32_t, kMaxExperts> device_of_few;
  for (std::size_t i = 0; i < kMaxExperts; ++i) few[i] = experts[order[i]];
  double cost = route_few(few, source, device_of_few.data());
  for (std::size_t i = 0; i < kMaxExperts; ++i) device_of[order[i]] = device_of_few[i];
  for (std::size_t i = kMaxExperts; i < experts.size(); ++i) {
    const std::size_t e = experts[order[i]];
    std::size_t cheapest = devices_;
    for (std::size_t d = 0; d < devices_; ++d)
      if (hosts_[e * devices_ + d] != 0 && (cheapest == devices_ || prices_[d] < prices_[cheapest]))
        cheapest = d;
    GRACE_CHECK(cheapest < devices_, "every expert has a host");
    device_of[order[i]] = static_cast<std::int32_t>(cheapest);
    cost += price(e, cheapest);
  }
  return cost;
}

}  // namespace grace::joint
