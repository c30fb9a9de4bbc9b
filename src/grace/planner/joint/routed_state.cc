#include "grace/planner/joint/routed_state.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "grace/base/check.h"
#include "grace/planner/joint/bitset_partition.h"

namespace grace::joint {
namespace {

// A price above this many times the mean would only say that the device is to be avoided.
constexpr double kMostOverMean = 6;
// Of the mean price, for a device that has twice the mean load.
constexpr double kFirstStep = 0.6;

CoverCosts costs_of(const Weights& weights, const SearchTokens& tokens, std::size_t devices) {
  const double per_token =
      tokens.size() == 0 ? 1 : static_cast<double>(tokens.assignments) / static_cast<double>(tokens.size());
  return {weights.node, weights.device, std::vector<double>(devices, weights.load / per_token)};
}

}  // namespace

Hosts hosts_of(const LayerPlan& layer, int num_experts) {
  const std::size_t devices = layer.primaries_of_device.size();
  Hosts hosts(static_cast<std::size_t>(num_experts) * devices, 0);
  for (std::size_t d = 0; d < devices; ++d)
    for (const auto* list : {&layer.primaries_of_device[d], &layer.replicas_of_device[d]})
      for (const ExpertId e : *list) hosts[e.idx() * devices + d] = 1;
  return hosts;
}

RoutedState::RoutedState(const Cluster& cluster, const SearchTokens& tokens, const Weights& weights,
                         const Hosts& hosts)
    : tokens_(tokens),
      weights_(weights),
      devices_(static_cast<std::size_t>(cluster.num_devices())),
      cover_(cluster, tokens.num_experts, costs_of(weights, tokens, devices_)),
      hosts_(hosts),
      prices_(costs_of(weights, tokens, devices_).price) {
  per_price_ = prices_.front();
  copies_.assign(static_cast<std::size_t>(tokens.num_experts), 0);
  tokens_of_.resize(copies_.size());
  for (std::size_t e = 0; e < copies_.size(); ++e)
    tokens_of_[e].reserve(static_cast<std::size_t>(tokens.load[e]));
  for (std::size_t t = 0; t < tokens.size(); ++t)
    for (const std::uint16_t e : tokens.of(t)) tokens_of_[e].push_back(static_cast<std::uint32_t>(t));
  device_of_.resize(tokens.experts.size());
  x_.resize(tokens.size());
  y_.resize(tokens.size());
  mark_.assign(tokens.size(), 0);
  double speed = 0;
  for (const double s : weights.speed) speed += s;
  mean_work_ = static_cast<double>(tokens.assignments) / speed;
  for (std::size_t t = 0; t < tokens.size(); ++t)
    for (std::size_t r = 0; r < kHalves; ++r)
      if ((tokens.halves[t] >> r & 1) != 0) half_total_[r] += static_cast<std::int64_t>(tokens.of(t).size());
  set_hosts(hosts, prices_);
}

void RoutedState::set_hosts(const Hosts& hosts, std::span<const double> prices) {
  hosts_ = hosts;
  prices_.assign(prices.begin(), prices.end());
  for (std::size_t e = 0; e < copies_.size(); ++e) {
    copies_[e] = 0;
    for (std::size_t d = 0; d < devices_; ++d) {
      copies_[e] += hosts_[e * devices_ + d];
      cover_.set_host(ExpertId(static_cast<std::int32_t>(e)), DeviceId(static_cast<std::int32_t>(d)),
                      hosts_[e * devices_ + d] != 0);
    }
    GRACE_CHECK(copies_[e] > 0, "every expert has a host");
  }
  cover_.set_prices(prices_);
  reroute_all();
}

void RoutedState::set_prices(std::span<const double> prices) {
  prices_.assign(prices.begin(), prices.end());
  cover_.set_prices(prices_);
  reroute_all();
}

void RoutedState::account(std::size_t token, int sign) {
  const std::size_t begin = tokens_.begin[token];
  const std::span<const std::uint16_t> experts = tokens_.of(token);
  const std::size_t num_experts = copies_.size();
  for (std::size_t k = 0; k < experts.size(); ++k) {
    const auto device = static_cast<std::size_t>(device_of_[begin + k]);
    std::int32_t& load = copy_load_[device * num_experts + experts[k]];
    work_[device] -= weights_.work[static_cast<std::size_t>(load)] / weights_.speed[device];
    load += sign;
    work_[device] += weights_.work[static_cast<std::size_t>(load)] / weights_.speed[device];
    add_to_halves(token, device, sign);
  }
  sum_x_ += sign * x_[token];
  sum_y_ += sign * y_[token];
}

void RoutedState::reroute_all() {
  copy_load_.assign(devices_ * copies_.size(), 0);
  work_.assign(devices_, 0);
  load_.assign(devices_, 0);
  half_load_.assign(devices_, {});
  sum_x_ = sum_y_ = 0;
  for (std::size_t t = 0; t < tokens_.size(); ++t) {
    const Cover::Visit visit = cover_.route(tokens_.of(t), tokens_.source[t], &device_of_[tokens_.begin[t]]);
    x_[t] = static_cast<std::int16_t>(visit.nodes);
    y_[t] = static_cast<std::int16_t>(visit.devices);
    sum_x_ += x_[t];
    sum_y_ += y_[t];
    const std::span<const std::uint16_t> experts = tokens_.of(t);
    for (std::size_t k = 0; k < experts.size(); ++k) {
      const auto device = static_cast<std::size_t>(device_of_[tokens_.begin[t] + k]);
      ++copy_load_[device * copies_.size() + experts[k]];
      add_to_halves(t, device, 1);
    }
  }
  for (std::size_t d = 0; d < devices_; ++d) {
    for (std::size_t e = 0; e < copies_.size(); ++e)
      work_[d] += weights_.work[static_cast<std::size_t>(copy_load_[d * copies_.size() + e])];
    work_[d] /= weights_.speed[d];
  }
  value_ = value_now();
}

double RoutedState::max_over_mean() const {
  return mean_work_ > 0 ? *std::ranges::max_element(work_) / mean_work_ : 1;
}

double RoutedState::objective() const {
  const double tokens = std::max<double>(1, static_cast<double>(tokens_.size()));
  return (weights_.node * static_cast<double>(sum_x_) + weights_.device * static_cast<double>(sum_y_)) /
             tokens +
         weights_.load * max_over_mean();
}

void RoutedState::add_to_halves(std::size_t token, std::size_t device, int sign) {
  load_[device] += sign;
  std::array<std::int32_t, kHalves>& loads = half_load_[device];
  const std::uint32_t halves = tokens_.halves[token];
  for (std::size_t r = 0; r < kHalves; ++r) loads[r] += sign * static_cast<std::int32_t>(halves >> r & 1);
}

double RoutedState::over_halves() const {
  if (mean_work_ <= 0) return 1;
  const auto devices = static_cast<double>(devices_);
  std::array<double, kHalves> most{};
  std::array<double, kHalves> per_load{};
  for (std::size_t r = 0; r < kHalves; ++r)
    per_load[r] = half_total_[r] > 0 ? devices / static_cast<double>(half_total_[r]) : 0;
  const double per_all = devices / static_cast<double>(tokens_.assignments);
  for (std::size_t d = 0; d < devices_; ++d) {
    const double all = static_cast<double>(load_[d]) * per_all;
    for (std::size_t r = 0; r < kHalves; ++r) {
      // A half without tokens says nothing.
      const double off = per_load[r] > 0 ? half_load_[d][r] * per_load[r] - all : 0;
      most[r] = std::max(most[r], work_[d] / mean_work_ + off);
    }
  }
  double sum = 0;
  for (const double m : most) sum += m;
  return sum / static_cast<double>(kHalves);
}

double RoutedState::value_now() const {
  double squares = 0;
  if (mean_work_ > 0)
    for (const double w : work_) squares += (w / mean_work_ - 1) * (w / mean_work_ - 1);
  return objective() + weights_.load * (over_halves() - max_over_mean() +
                                        kSpread * squares / static_cast<double>(devices_));
}

void RoutedState::reroute(std::size_t token, bool save) {
  const std::size_t begin = tokens_.begin[token];
  const std::size_t count = tokens_.begin[token + 1] - begin;
  if (save) {
    saved_.push_back({static_cast<std::uint32_t>(token), x_[token], y_[token],
                      static_cast<std::uint32_t>(saved_devices_.size())});
    saved_devices_.insert(saved_devices_.end(), device_of_.begin() + static_cast<std::ptrdiff_t>(begin),
                          device_of_.begin() + static_cast<std::ptrdiff_t>(begin + count));
  }

  account(token, -1);
  const Cover::Visit visit = cover_.route(tokens_.of(token), tokens_.source[token], &device_of_[begin]);
  x_[token] = static_cast<std::int16_t>(visit.nodes);
  y_[token] = static_cast<std::int16_t>(visit.devices);
  account(token, 1);
}

bool RoutedState::serves(std::size_t token, std::uint16_t expert, std::size_t device) const {
  const std::span<const std::uint16_t> experts = tokens_.of(token);
  for (std::size_t k = 0; k < experts.size(); ++k)
    if (experts[k] == expert)
      return device_of_[tokens_.begin[token] + k] == static_cast<std::int32_t>(device);
  return false;
}

bool RoutedState::may_gain(std::size_t token, std::uint16_t expert, std::size_t device) const {
  const std::span<const std::uint16_t> experts = tokens_.of(token);
  const std::int32_t* device_of = &device_of_[tokens_.begin[token]];
  const std::size_t source = tokens_.source[token];
  const std::size_t own = cover_.node_of(source);
  std::size_t now = 0;
  for (std::size_t k = 0; k < experts.size(); ++k)
    if (experts[k] == expert) now = static_cast<std::size_t>(device_of[k]);
  const auto is_free = [&](std::size_t d) { return cover_.entry(source, cover_.node_of(d)) == d; };
  const std::size_t node = cover_.node_of(device), node_now = cover_.node_of(now);
  bool alone_on_device = true, alone_in_node = true, device_used = false, node_used = node == own;
  bool company_fits = true, another_fits = false;
  for (std::size_t k = 0; k < experts.size(); ++k) {
    if (experts[k] == expert) continue;
    const auto d = static_cast<std::size_t>(device_of[k]);
    const bool fits = is_host(experts[k], device);
    if (d == now) {
      alone_on_device = false;
      company_fits = company_fits && fits;
    } else if (fits && !is_free(d)) {
      another_fits = true;
    }
    alone_in_node = alone_in_node && cover_.node_of(d) != node_now;
    device_used = device_used || d == device;
    node_used = node_used || cover_.node_of(d) == node;
  }
  if (node_now != own && node != node_now && (alone_in_node || node != own)) return true;  // a node less
  if (!node_used) return false;
  const bool costs_nothing = device_used || is_free(device);
  if (costs_nothing && cover_.price(experts, device) < cover_.price(experts, now)) return true;
  if (is_free(now)) return false;
  if (alone_on_device) return costs_nothing || another_fits;
  return company_fits;
}

bool RoutedState::try_changes(std::span<const HostChange> changes, double limit) {
  changes_.assign(changes.begin(), changes.end());
  saved_.clear();
  saved_devices_.clear();
  saved_work_ = work_;
  saved_load_ = load_;
  saved_half_load_ = half_load_;
  saved_x_ = sum_x_;
  saved_y_ = sum_y_;
  saved_value_ = value_;
  ++try_;
  const double saved_over_mean = over_halves();
  for (const HostChange& change : changes_) {
    cover_.set_host(ExpertId(change.expert), DeviceId(change.device), change.add);
    hosts_[change.expert * devices_ + change.device] = change.add ? 1 : 0;
    copies_[change.expert] += change.add ? 1 : -1;
    GRACE_CHECK(copies_[change.expert] > 0, "every expert keeps a host");
  }
  // Tokens are in random order: the first part of each expert's is a fair sample of the change.
  std::size_t total = 0;
  for (const HostChange& change : changes_) total += tokens_of_[change.expert].size();
  // Eighths of the lists: after one, two and four of them the change is judged by what it has shown.
  constexpr std::size_t kEighths = 8;
  const std::size_t first_part = total >= 256 ? 1 : kEighths;
  std::size_t done = 0;
  for (std::size_t until = first_part; until <= kEighths; until *= 2) {
    for (const HostChange& change : changes_) {
      const std::vector<std::uint32_t>& list = tokens_of_[change.expert];
      for (std::size_t i = list.size() * done / kEighths; i < list.size() * until / kEighths; ++i) {
        const std::uint32_t token = list[i];
        if (mark_[token] == try_) continue;
        const bool touched = change.add ? may_gain(token, change.expert, change.device)
                                        : serves(token, change.expert, change.device);
        if (!touched) continue;
        mark_[token] = try_;
        reroute(token, true);
      }
    }
    done = until;
    if (done == kEighths) break;
    const double scale = static_cast<double>(kEighths) / static_cast<double>(done);
    const double moved = (weights_.node * static_cast<double>(sum_x_ - saved_x_) +
                          weights_.device * static_cast<double>(sum_y_ - saved_y_)) /
                         static_cast<double>(tokens_.size());
    // Loads may still make up for vectors, by at most what stands above the mean now.
    const double hope = weights_.load * std::max(0.0, saved_over_mean - 1) + limit;
    if (moved * scale * 0.6 > hope) {
      rollback();
      return false;
    }
  }
  value_ = value_now();
  return true;
}

void RoutedState::commit() { changes_.clear(); }

void RoutedState::rollback() {
  const std::size_t num_experts = copies_.size();
  for (const HostChange& change : changes_) {
    cover_.set_host(ExpertId(change.expert), DeviceId(change.device), !change.add);
    hosts_[change.expert * devices_ + change.device] = change.add ? 0 : 1;
    copies_[change.expert] -= change.add ? 1 : -1;
  }
  for (const Saved& saved : saved_) {
    const std::size_t begin = tokens_.begin[saved.token];
    const std::span<const std::uint16_t> experts = tokens_.of(saved.token);
    for (std::size_t k = 0; k < experts.size(); ++k) {
      --copy_load_[static_cast<std::size_t>(device_of_[begin + k]) * num_experts + experts[k]];
      device_of_[begin + k] = saved_devices_[saved.first + k];
      ++copy_load_[static_cast<std::size_t>(device_of_[begin + k]) * num_experts + experts[k]];
    }
    x_[saved.token] = saved.x;
    y_[saved.token] = saved.y;
  }
  work_ = saved_work_;
  load_ = saved_load_;
  half_load_ = saved_half_load_;
  sum_x_ = saved_x_;
  sum_y_ = saved_y_;
  value_ = saved_value_;
  changes_.clear();
}

void RoutedState::step_prices(double step) {
  if (mean_work_ <= 0) return;
  double sum = 0;
  for (std::size_t d = 0; d < devices_; ++d) {
    prices_[d] += per_price_ * step * (work_[d] / mean_work_ - 1);
    prices_[d] = std::clamp(prices_[d], 0.0, kMostOverMean * per_price_);
    sum += prices_[d];
  }
  // The prices of a bound sum to D times the mean; a common addition changes no route.
  for (double& price : prices_) price *= sum > 0 ? per_price_ * static_cast<double>(devices_) / sum : 1;
  set_prices(prices_);
}

void RoutedState::fit_prices(int steps) {
  std::vector<double> best = prices_;
  double best_value = value_;
  for (int i = 0; i < steps; ++i) {
    step_prices(kFirstStep / (1 + 0.3 * i));
    if (value_ >= best_value) continue;
    best_value = value_;
    best = prices_;
  }
  set_prices(best);
}

std::vector<double> RoutedState::loads() const {
  std::vector<double> loads(devices_, 0);
  for (std::size_t d = 0; d < devices_; ++d)
    for (std::size_t e = 0; e < copies_.size(); ++e) loads[d] += copy_load_[d * copies_.size() + e];
  return loads;
}

}  // namespace grace::joint
