#include "grace/planner/joint/bounds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>

#include "grace/base/check.h"
#include "grace/planner/joint/exact_cover.h"
#include "grace/routing/cover.h"

namespace grace::joint {
namespace {

// Whether the loads, each times `scale`, fit on devices of `room` each: by augmenting paths, shortest first.
class LoadFlow {
 public:
  LoadFlow(std::span<const std::int64_t> load, const Hosts& hosts, std::size_t devices, std::int64_t scale,
           std::int64_t room)
      : hosts_(hosts), devices_(devices), room_(devices, room), flow_(hosts.size(), 0) {
    for (const std::int64_t l : load) left_.push_back(l * scale);
    for (std::size_t e = 0; e < left_.size(); ++e)
      for (std::size_t d = 0; d < devices_; ++d)
        if (hosts_[e * devices_ + d] != 0) send(e, d, std::min(left_[e], room_[d]));
    while (augment()) {
    }
  }

  bool fits() const {
    return std::ranges::all_of(left_, [](std::int64_t l) { return l == 0; });
  }
  // Of what does not fit: the experts that were reached from what is left, and all their hosts.
  const std::vector<std::size_t>& experts() const { return expert_queue_; }
  std::vector<std::size_t> devices() const {
    std::vector<std::size_t> reached;
    for (std::size_t d = 0; d < devices_; ++d)
      if (expert_before_[d] != kNone) reached.push_back(d);
    return reached;
  }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};

  void send(std::size_t e, std::size_t d, std::int64_t amount) {
    flow_[e * devices_ + d] += amount;
    left_[e] -= amount;
    room_[d] -= amount;
  }

  bool augment() {
    expert_queue_.clear();
    device_before_.assign(left_.size(), kNone);  // of each expert, kNone for those with load left
    expert_before_.assign(devices_, kNone);
    std::vector<std::uint8_t> reached(left_.size(), 0);
    for (std::size_t e = 0; e < left_.size(); ++e)
      if (left_[e] > 0) {
        expert_queue_.push_back(e);
        reached[e] = 1;
      }
    for (std::size_t i = 0; i < expert_queue_.size(); ++i) {
      const std::size_t e = expert_queue_[i];
      for (std::size_t d = 0; d < devices_; ++d) {
        if (hosts_[e * devices_ + d] == 0 || expert_before_[d] != kNone) continue;
        expert_before_[d] = e;
        if (room_[d] > 0) {
          push_along(d);
          return true;
        }
        for (std::size_t f = 0; f < left_.size(); ++f)
          if (reached[f] == 0 && flow_[f * devices_ + d] > 0) {
            reached[f] = 1;
            device_before_[f] = d;
            expert_queue_.push_back(f);
          }
      }
    }
    return false;
  }

  void push_along(std::size_t last) {
    std::int64_t amount = room_[last];
    for (std::size_t d = last; d != kNone;) {
      const std::size_t e = expert_before_[d];
      d = device_before_[e];
      amount = std::min(amount, d == kNone ? left_[e] : flow_[e * devices_ + d]);
    }
    room_[last] -= amount;
    for (std::size_t d = last; d != kNone;) {
      const std::size_t e = expert_before_[d];
      flow_[e * devices_ + d] += amount;
      d = device_before_[e];
      (d == kNone ? left_[e] : flow_[e * devices_ + d]) -= amount;
    }
  }

  const Hosts& hosts_;
  std::size_t devices_;
  std::vector<std::int64_t> left_, room_;
  std::vector<std::int64_t> flow_;  // [E, D]
  std::vector<std::size_t> expert_queue_, device_before_, expert_before_;
};

// The devices that the least possible load of the fullest one comes from: they hold all copies of the experts
// that prove it.
struct Tightest {
  double load = 0;
  std::vector<std::size_t> devices;
};
Tightest tightest(std::span<const std::int64_t> load, const Hosts& hosts, std::size_t num_devices) {
  GRACE_CHECK(hosts.size() == load.size() * num_devices, "hosts are [E, D]");
  Tightest found{0, std::vector<std::size_t>(num_devices)};
  std::iota(found.devices.begin(), found.devices.end(), std::size_t{0});
  std::int64_t most = std::accumulate(load.begin(), load.end(), std::int64_t{0});
  if (most == 0) return found;
  // Newton: what does not fit under the bound is a set of experts that proves a higher one (Dinkelbach).
  while (true) {
    const auto over = static_cast<std::int64_t>(found.devices.size());
    const LoadFlow flow(load, hosts, num_devices, over, most);
    if (flow.fits()) {
      found.load = static_cast<double>(most) / static_cast<double>(over);
      return found;
    }
    most = 0;
    for (const std::size_t e : flow.experts()) most += load[e];
    found.devices = flow.devices();
    GRACE_CHECK(!found.devices.empty(), "every expert with a load has a host");
  }
}

// What an assignment of each expert costs at least: its work when the expert's assignments are n in one copy,
// by n, at its least up to all of them.
std::vector<double> least_work(const SearchTokens& tokens, const Weights& weights) {
  std::vector<double> least{std::numeric_limits<double>::infinity()};
  for (std::size_t n = 1; n < weights.work.size(); ++n)
    least.push_back(std::min(least.back(), weights.work[n] / static_cast<double>(n)));
  std::vector<double> of_expert;
  for (const std::int64_t load : tokens.load)
    of_expert.push_back(load == 0 ? 0 : least[static_cast<std::size_t>(load)]);
  return of_expert;
}

double sum_of(std::span<const double> values) { return std::accumulate(values.begin(), values.end(), 0.0); }

}  // namespace

double exact_min_max_load(std::span<const std::int64_t> load, const Hosts& hosts, std::size_t num_devices) {
  return tightest(load, hosts, num_devices).load;
}

namespace {

// The sum of exact covers as a function of how the load term is shared out over the devices: concave, and
// every value of it a bound.
class Dual {
 public:
  Dual(const Cluster& cluster, const SearchTokens& tokens, const Weights& weights, const Hosts& hosts)
      : tokens_(tokens),
        weights_(weights),
        mean_work_(static_cast<double>(tokens.assignments) / sum_of(weights.speed)),
        factors_(least_work(tokens, weights)),
        cover_(cluster, hosts, weights.node, weights.device),
        prices_(weights.speed.size()),
        work_(weights.speed.size()) {}

  // share: [D], sums to 1.
  double value(std::span<const double> share) {
    const auto num_tokens = static_cast<double>(tokens_.size());
    for (std::size_t d = 0; d < share.size(); ++d)
      prices_[d] = share[d] * weights_.load * num_tokens / (mean_work_ * weights_.speed[d]);
    cover_.set_prices(prices_, factors_);
    std::ranges::fill(work_, 0);
    double total = 0;
    std::array<std::int32_t, kMaxExpertsPerToken> device_of;
    for (std::size_t t = 0; t < tokens_.size(); ++t) {
      const std::span<const std::uint16_t> experts = tokens_.of(t);
      total += cover_.route(experts, tokens_.source[t], device_of.data());
      for (std::size_t k = 0; k < experts.size(); ++k)
        work_[static_cast<std::size_t>(device_of[k])] += factors_[experts[k]];
    }
    for (std::size_t d = 0; d < work_.size(); ++d)
      work_[d] *= weights_.load / (weights_.speed[d] * mean_work_);
    return total / num_tokens;
  }
  // Of the last share: its prices, and by how much the value grows with each device's share.
  const std::vector<double>& prices() const { return prices_; }
  const std::vector<double>& slope() const { return work_; }

 private:
  const SearchTokens& tokens_;
  const Weights& weights_;
  double mean_work_;
  std::vector<double> factors_;
  ExactCover cover_;
  std::vector<double> prices_, work_;
};

// Shares of devices that hold prices, none of them lost for good.
std::vector<double> shares_of(std::span<const double> prices, std::span<const double> speed) {
  const auto devices = static_cast<double>(speed.size());
  std::vector<double> share(speed.begin(), speed.end());
  if (sum_of(prices) > 0)
    for (std::size_t d = 0; d < share.size(); ++d)
      share[d] = std::max(prices[d], 1e-3 * sum_of(prices) / devices) * speed[d];
  const double sum = sum_of(share);
  for (double& s : share) s /= sum;
  return share;
}

// Along the slope, multiplied, as far as a straight line would gain `wanted`.
std::vector<double> ascended(std::vector<double> share, std::span<const double> slope, double wanted) {
  double mean = 0, squares = 0;
  for (std::size_t d = 0; d < share.size(); ++d) {
    mean += share[d] * slope[d];
    squares += share[d] * slope[d] * slope[d];
  }
  const double variance = squares - mean * mean;
  if (!(variance > 0)) return share;
  for (std::size_t d = 0; d < share.size(); ++d)
    share[d] *= std::exp(std::clamp(wanted / variance * (slope[d] - mean), -1.5, 1.5));
  const double sum = sum_of(share);
  for (double& s : share) s /= sum;
  return share;
}

}  // namespace

RoutingBound routing_bound(const Cluster& cluster, const SearchTokens& tokens, const Weights& weights,
                           const Hosts& hosts, std::span<const double> prices, int steps) {
  const auto devices = static_cast<std::size_t>(cluster.num_devices());
  RoutingBound bound{0, std::vector<double>(devices, 0)};
  if (tokens.assignments == 0) return bound;
  Dual dual(cluster, tokens, weights, hosts);
  const auto value_at = [&](std::span<const double> share) {
    const double value = dual.value(share);
    if (value > bound.value) bound = {value, dual.prices()};
    return value;
  };
  // Where loads cannot be made even, all of the weight lies on the devices that stay above the others.
  const Tightest tight = tightest(tokens.load, hosts, devices);
  std::vector<double> on_tight(devices, 0);
  for (const std::size_t d : tight.devices) on_tight[d] = 1 / static_cast<double>(tight.devices.size());
  const double at_tight = value_at(on_tight);
  std::vector<double> share = shares_of(prices, weights.speed);
  if (value_at(share) < at_tight)
    for (std::size_t d = 0; d < devices; ++d) share[d] = 0.9 * on_tight[d] + 0.1 * share[d];
  // Steps that would, on a straight line, reach a little more than the best so far (Polyak).
  double more = 0.01;
  for (int step = 0; step < steps; ++step, more *= 0.85) {
    const double value = value_at(share);
    share = ascended(std::move(share), dual.slope(), bound.value * (1 + more) - value);
  }
  return bound;
}

namespace {

// How often each pair of experts is in one token, in pairs [E, E], `own` [E] of tokens of that expert alone;
// each token counts weight(its experts).
struct Company {
  std::vector<double> pairs;
  std::vector<double> own;
};
template <typename Takes, typename Weight>
Company company_of(const SearchTokens& tokens, Takes takes, Weight weight) {
  const auto n = static_cast<std::size_t>(tokens.num_experts);
  Company company{std::vector<double>(n * n, 0), std::vector<double>(n, 0)};
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    if (!takes(t)) continue;
    const std::span<const std::uint16_t> experts = tokens.of(t);
    if (experts.size() == 1) company.own[experts[0]] += 1;
    const double w = weight(experts.size());
    for (const std::uint16_t e : experts)
      for (const std::uint16_t f : experts)
        if (e != f) company.pairs[e * n + f] += w;
  }
  return company;
}

// The experts' best companies: sums of the largest 0, 1, 2 ... of each row.
std::vector<double> best_company(std::span<const double> row) {
  std::vector<double> sorted(row.begin(), row.end());
  std::ranges::sort(sorted, std::greater());
  std::vector<double> sums{0};
  for (const double v : sorted) sums.push_back(sums.back() + v);
  return sums;
}

// Sum over tokens of the places (nodes or devices) each needs at least, when a place holds at most `room`
// experts and all places together `copies` of them. A token's expert is worth 1 / (the most of the token's
// experts that any of its hosts holds) places; with L tokens and M the sum of those numbers that is at least
// L^2 / M, and with c copies M is at most L and the expert's c * (room - 1) commonest companions. Convex in
// c, so that copies go where they lower the sum most.
double least_places(const SearchTokens& tokens, std::size_t room, std::size_t copies, std::size_t places) {
  const auto n = static_cast<std::size_t>(tokens.num_experts);
  const Company company = company_of(
      tokens, [](std::size_t) { return true; }, [](std::size_t) { return 1.0; });
  std::vector<std::vector<double>> best;
  const auto worth = [&](std::size_t e, std::size_t c) {
    const auto load = static_cast<double>(tokens.load[e]);
    return load == 0 ? 0 : load * load / (load + best[e][std::min(c * (room - 1), n)]);
  };
  struct Gain {
    double gain;
    std::size_t expert, copies;
    bool operator<(const Gain& other) const {
      return gain != other.gain ? gain < other.gain : expert > other.expert;
    }
  };
  std::priority_queue<Gain> heap;
  double sum = 0;
  for (std::size_t e = 0; e < n; ++e) {
    best.push_back(best_company({&company.pairs[e * n], n}));
    sum += worth(e, 1);
    heap.push({worth(e, 1) - worth(e, 2), e, 1});
  }
  for (std::size_t left = copies - std::min(copies, n); left > 0 && !heap.empty(); --left) {
    const Gain top = heap.top();
    heap.pop();
    if (top.gain <= 0) break;
    sum -= top.gain;
    if (top.copies + 2 > places) continue;
    heap.push(
        {worth(top.expert, top.copies + 1) - worth(top.expert, top.copies + 2), top.expert, top.copies + 1});
  }
  return sum;
}

// Places that hold up to room[p] experts each; a token belongs to place_of_source of its source. At least
// this many tokens do not find all of their experts in their own place. The pairs of a token share it out: a
// place with the experts H keeps at most the sum over H of the best company that each can have there. Every
// expert must be somewhere: a gift to the cold ones, taken back once, tells that (Lagrange); any gift is
// right.
double least_leavers(const SearchTokens& tokens, std::span<const int> room,
                     std::span<const std::size_t> place_of_source) {
  const auto n = static_cast<std::size_t>(tokens.num_experts);
  std::vector<std::vector<double>> kept(room.size());  // [places][E]
  std::vector<double> mean(n, 0);
  for (std::size_t p = 0; p < room.size(); ++p) {
    const Company company = company_of(
        tokens, [&](std::size_t t) { return place_of_source[tokens.source[t]] == p; },
        [](std::size_t size) { return size < 2 ? 0 : 1 / static_cast<double>(size * (size - 1)); });
    for (std::size_t e = 0; e < n; ++e) {
      const std::vector<double> best = best_company({&company.pairs[e * n], n});
      kept[p].push_back(room[p] == 0 ? 0 : company.own[e] + best[static_cast<std::size_t>(room[p] - 1)]);
      mean[e] += kept[p][e] / static_cast<double>(room.size());
    }
  }
  double least = std::numeric_limits<double>::infinity();
  std::vector<double> levels = mean;
  levels.push_back(0);
  std::ranges::sort(levels);
  const std::size_t stride = std::max<std::size_t>(1, levels.size() / 16);
  std::vector<double> with_gift(n);
  for (std::size_t i = 0; i < levels.size(); i += stride) {
    double sum = 0;
    for (std::size_t e = 0; e < n; ++e) sum -= std::max(0.0, levels[i] - mean[e]);
    for (std::size_t p = 0; p < room.size(); ++p) {
      for (std::size_t e = 0; e < n; ++e) with_gift[e] = kept[p][e] + std::max(0.0, levels[i] - mean[e]);
      std::ranges::sort(with_gift, std::greater());
      for (std::size_t e = 0; e < std::min(n, static_cast<std::size_t>(room[p])); ++e) sum += with_gift[e];
    }
    least = std::min(least, sum);
  }
  return std::max(0.0, static_cast<double>(tokens.size()) - least);
}

}  // namespace

PlacementBound placement_bound(const Cluster& cluster, const SearchTokens& tokens, const Weights& weights,
                               std::span<const int> slots) {
  const auto devices = static_cast<std::size_t>(cluster.num_devices());
  const auto nodes = static_cast<std::size_t>(cluster.num_nodes());
  PlacementBound bound;
  if (tokens.assignments == 0) {
    bound.value = weights.load;
    return bound;
  }
  const auto num_tokens = static_cast<double>(tokens.size());
  std::vector<int> device_room, node_room(nodes, 0);
  std::vector<std::size_t> node_of(devices), itself(devices);
  for (std::size_t d = 0; d < devices; ++d) {
    itself[d] = d;
    node_of[d] = cluster.node_of(DeviceId(static_cast<std::int32_t>(d))).idx();
    device_room.push_back(std::min(slots[d], tokens.num_experts));
    node_room[node_of[d]] = std::min(node_room[node_of[d]] + device_room[d], tokens.num_experts);
  }
  const auto places = [&](const std::vector<int>& room) {
    return least_places(tokens, static_cast<std::size_t>(*std::ranges::max_element(room)),
                        static_cast<std::size_t>(std::accumulate(room.begin(), room.end(), 0)), room.size());
  };
  bound.nodes =
      std::max(places(node_room) - num_tokens, least_leavers(tokens, node_room, node_of)) / num_tokens;
  // Each device but the own is an entry, paid for as a node, or a forward.
  bound.vectors =
      std::max(places(device_room) - num_tokens, least_leavers(tokens, device_room, itself)) / num_tokens;
  bound.vectors = std::max(bound.vectors, bound.nodes);

  const std::vector<double> factors = least_work(tokens, weights);
  const int room = std::accumulate(device_room.begin(), device_room.end(), 0);
  const int most_copies = std::min<int>(static_cast<int>(devices), room - tokens.num_experts + 1);
  const double fastest = *std::ranges::max_element(weights.speed);
  const double mean_work = static_cast<double>(tokens.assignments) / sum_of(weights.speed);
  double work = 0;
  for (std::size_t e = 0; e < factors.size(); ++e) {
    const double of_expert = factors[e] * static_cast<double>(tokens.load[e]);
    work += of_expert;
    bound.load = std::max(bound.load, of_expert / most_copies / fastest / mean_work);
  }
  bound.load = std::max(bound.load, work / static_cast<double>(tokens.assignments));
  bound.value = std::max(0.0, weights.node - weights.device) * bound.nodes +
                std::min(weights.node, weights.device) * bound.vectors + weights.load * bound.load;
  return bound;
}

}  // namespace grace::joint
