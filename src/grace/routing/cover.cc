#include "grace/routing/cover.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "grace/base/check.h"
#include "grace/base/rng.h"

// The loader picks the clone for the machine; all compute the same whole numbers. Sanitizers run before a
// choice is possible.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define GRACE_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define GRACE_CLONES
#endif
#define GRACE_INLINE inline __attribute__((always_inline))

namespace grace {
namespace {

constexpr std::size_t kLanes = 8;   // loops over lanes are whole vectors
constexpr double kDearest = 65536;  // what the dearest cost is scaled to
// A host that is not one: above any price. A device that may not be opened: above what it could save.
constexpr std::int32_t kFar = 1 << 21;
constexpr std::int32_t kNever = 1 << 30;
constexpr std::int32_t kHighestPrice = kFar / 4;
static_assert(std::int64_t{kFar} * kMaxExpertsPerToken < kNever);
constexpr std::size_t kSurcharges = 64;  // a token pays one of so many rows
constexpr unsigned kSurchargeBits = 6;
static_assert(kSurcharges == std::size_t{1} << kSurchargeBits);

// One token on its way.
struct Token {
  std::size_t count;
  std::size_t lanes;
  const std::int32_t* rows[kMaxExpertsPerToken];
  const std::int32_t* surcharge;              // [lanes]
  std::int32_t current[kMaxExpertsPerToken];  // price each expert pays
  std::int32_t* device_of;
  std::int32_t device_cost;
  std::int32_t lowest_price;
  const std::int32_t* opening[kMaxExpertsPerToken + 1];  // [lanes] of each opened node, the own first
  std::int32_t entries[kMaxExpertsPerToken + 1];
  std::size_t num_nodes;
  std::int32_t opened[kMaxExpertsPerToken];  // devices that were paid for
  std::size_t num_opened;
};

GRACE_INLINE void take_where_cheaper(Token& token, std::int32_t device) {
  for (std::size_t k = 0; k < token.count; ++k) {
    const std::int32_t price = token.rows[k][device] + token.surcharge[device];
    const bool cheaper = price < token.current[k];
    token.current[k] = cheaper ? price : token.current[k];
    token.device_of[k] = cheaper ? device : token.device_of[k];
  }
}

// Opens what saves most until nothing saves: what each lane would save is the sum over experts of what they
// pay now above its row, less its opening. `blocks`: vectors of lanes, a constant where the compiler shall
// unroll.
GRACE_INLINE void open_devices(Token& token, std::size_t blocks, std::int32_t* opening,
                               std::int32_t* saving) {
  for (std::size_t l = 0; l < blocks * kLanes; ++l) opening[l] = token.opening[0][l];
  for (std::size_t n = 1; n < token.num_nodes; ++n)
    for (std::size_t l = 0; l < blocks * kLanes; ++l) opening[l] = std::min(opening[l], token.opening[n][l]);
  while (token.num_opened < token.count) {
    // No device can save more than everything above the lowest price.
    std::int32_t above = 0;
    for (std::size_t k = 0; k < token.count; ++k) above += token.current[k] - token.lowest_price;
    if (above <= token.device_cost) return;
    for (std::size_t b = 0; b < blocks; ++b) {
      std::array<std::int32_t, kLanes> sum;
      for (std::size_t l = 0; l < kLanes; ++l) sum[l] = -opening[b * kLanes + l];
      const std::int32_t* surcharge = token.surcharge + b * kLanes;
      for (std::size_t k = 0; k < token.count; ++k) {
        const std::int32_t* row = token.rows[k] + b * kLanes;
        const std::int32_t now = token.current[k];
        for (std::size_t l = 0; l < kLanes; ++l) sum[l] += std::max(0, now - row[l] - surcharge[l]);
      }
      for (std::size_t l = 0; l < kLanes; ++l) saving[b * kLanes + l] = sum[l];
    }
    std::int32_t most = 0;
    for (std::size_t l = 0; l < blocks * kLanes; ++l) most = std::max(most, saving[l]);
    if (most == 0) return;
    std::int32_t best = 0;
    while (saving[best] != most) ++best;
    token.opened[token.num_opened++] = best;
    take_where_cheaper(token, best);
  }
}

// A device opened early may have been made idle, or nearly so, by those opened later: closes the one that
// saves most by it, until none does.
GRACE_INLINE void close_devices(Token& token) {
  while (token.num_opened > 1) {
    // What each expert would pay without its device: the lowest price but its own.
    std::int32_t dearer[kMaxExpertsPerToken];  // of each opened device
    for (std::size_t i = 0; i < token.num_opened; ++i) dearer[i] = 0;
    std::int32_t other[kMaxExpertsPerToken];
    std::int32_t other_price[kMaxExpertsPerToken];
    for (std::size_t k = 0; k < token.count; ++k) {
      other_price[k] = kFar;
      other[k] = token.device_of[k];
    }
    const auto consider = [&](std::int32_t device) __attribute__((always_inline)) {
      for (std::size_t k = 0; k < token.count; ++k) {
        const std::int32_t price =
            device == token.device_of[k] ? kFar : token.rows[k][device] + token.surcharge[device];
        other[k] = price < other_price[k] ? device : other[k];
        other_price[k] = std::min(price, other_price[k]);
      }
    };
    for (std::size_t n = 0; n < token.num_nodes; ++n) consider(token.entries[n]);
    for (std::size_t i = 0; i < token.num_opened; ++i) consider(token.opened[i]);
    for (std::size_t i = 0; i < token.num_opened; ++i)
      for (std::size_t k = 0; k < token.count; ++k)
        dearer[i] += token.device_of[k] == token.opened[i] ? other_price[k] - token.current[k] : 0;
    std::size_t least = 0;
    for (std::size_t i = 1; i < token.num_opened; ++i)
      if (dearer[i] < dearer[least]) least = i;
    // Where devices cost nothing, those that serve nobody are closed all the same.
    if (dearer[least] >= std::max(1, token.device_cost)) return;
    const std::int32_t closed = token.opened[least];
    for (std::size_t k = 0; k < token.count; ++k) {
      if (token.device_of[k] != closed) continue;
      token.device_of[k] = other[k];
      token.current[k] = other_price[k];
    }
    token.opened[least] = token.opened[--token.num_opened];
  }
}

GRACE_INLINE void run(Token& token, std::size_t blocks, std::int32_t* opening, std::int32_t* saving) {
  for (std::size_t n = 0; n < token.num_nodes; ++n) take_where_cheaper(token, token.entries[n]);
  open_devices(token, blocks, opening, saving);
  close_devices(token);
}
// Vectors never leave a function that is not inlined, so that their ABI does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"

// The same for at most eight devices and eight experts, held in registers: a vector over devices for each
// expert, or over experts.
using Lanes = std::int32_t __attribute__((vector_size(32)));
static_assert(sizeof(Lanes) == kLanes * sizeof(std::int32_t));

GRACE_INLINE Lanes splat(std::int32_t value) { return Lanes{} + value; }
GRACE_INLINE Lanes larger(Lanes a, Lanes b) { return a > b ? a : b; }
GRACE_INLINE Lanes smaller(Lanes a, Lanes b) { return a < b ? a : b; }
GRACE_INLINE std::int32_t sum_of(Lanes a) {
  a += __builtin_shufflevector(a, a, 4, 5, 6, 7, 0, 1, 2, 3);
  a += __builtin_shufflevector(a, a, 2, 3, 0, 1, 6, 7, 4, 5);
  return a[0] + a[1];
}
GRACE_INLINE std::int32_t max_of(Lanes a) {
  a = larger(a, __builtin_shufflevector(a, a, 4, 5, 6, 7, 0, 1, 2, 3));
  a = larger(a, __builtin_shufflevector(a, a, 2, 3, 0, 1, 6, 7, 4, 5));
  return std::max(a[0], a[1]);
}

class Small {
 public:
  GRACE_INLINE explicit Small(Token& token) : token_(token) {
    Lanes surcharge;
    __builtin_memcpy(&surcharge, token.surcharge, sizeof(Lanes));
    for (std::size_t k = 0; k < kLanes; ++k) {
      const bool there = k < token.count;
      row_[k] = splat(kFar);
      if (there) __builtin_memcpy(&row_[k], token.rows[k], sizeof(Lanes));
      row_[k] += surcharge;
      current_[k] = there ? kFar : 0;  // what is not there has nothing to save
    }
  }
  GRACE_INLINE void run() {
    for (std::size_t n = 0; n < token_.num_nodes; ++n) take_where_cheaper(token_.entries[n]);
    open_devices();
    while (token_.num_opened > 1 && close_one()) continue;
    for (std::size_t k = 0; k < token_.count; ++k) token_.device_of[k] = device_[k];
  }

 private:
  GRACE_INLINE Lanes column(std::int32_t device) const {
    Lanes prices;
    for (std::size_t k = 0; k < kLanes; ++k) prices[k] = row_[k][device];
    return prices;
  }
  GRACE_INLINE void take_where_cheaper(std::int32_t device) {
    const Lanes price = column(device);
    device_ =
        price < current_ ? splat(device) : device_;  // never where nothing is: its price is above its zero
    current_ = smaller(price, current_);
  }
  GRACE_INLINE void open_devices() {
    Lanes opening;
    __builtin_memcpy(&opening, token_.opening[0], sizeof(Lanes));
    for (std::size_t n = 1; n < token_.num_nodes; ++n) {
      Lanes of_node;
      __builtin_memcpy(&of_node, token_.opening[n], sizeof(Lanes));
      opening = smaller(opening, of_node);
    }
    const auto count = static_cast<std::int32_t>(token_.count);
    constexpr Lanes kLowestFirst = {7, 6, 5, 4, 3, 2, 1, 0};
    while (token_.num_opened < token_.count) {
      if (sum_of(current_) - count * token_.lowest_price <= token_.device_cost) return;
      Lanes saving = -opening;
      for (std::size_t k = 0; k < kLanes; ++k) saving += larger(Lanes{}, splat(current_[k]) - row_[k]);
      // The device rides in the low bits, so that one maximum finds both.
      const std::int32_t most = max_of(larger(saving, Lanes{}) * 8 + kLowestFirst);
      if (most < 8) return;
      const std::int32_t best = 7 - most % 8;
      token_.opened[token_.num_opened++] = best;
      take_where_cheaper(best);
    }
  }
  GRACE_INLINE bool close_one() {
    Lanes other = device_;
    Lanes other_price = splat(kFar);
    const auto consider = [&](std::int32_t device) __attribute__((always_inline)) {
      const Lanes price = device_ == splat(device) ? splat(kFar) : column(device);
      other = price < other_price ? splat(device) : other;
      other_price = smaller(price, other_price);
    };
    for (std::size_t n = 0; n < token_.num_nodes; ++n) consider(token_.entries[n]);
    for (std::size_t i = 0; i < token_.num_opened; ++i) consider(token_.opened[i]);
    const Lanes dearer = other_price - current_;
    std::size_t least = 0;
    std::int32_t least_dearer = kNever;
    for (std::size_t i = 0; i < token_.num_opened; ++i) {
      const std::int32_t sum = sum_of(device_ == splat(token_.opened[i]) ? dearer : Lanes{});
      if (sum >= least_dearer) continue;
      least_dearer = sum;
      least = i;
    }
    if (least_dearer >= std::max(1, token_.device_cost)) return false;  // as above
    const Lanes closed = device_ == splat(token_.opened[least]);
    device_ = closed ? other : device_;
    current_ = closed ? other_price : current_;
    token_.opened[least] = token_.opened[--token_.num_opened];
    return true;
  }

  Token& token_;
  Lanes row_[kLanes];         // [experts] over devices
  Lanes current_{};           // over experts: the price each pays
  Lanes device_ = splat(-1);  // over experts; -1 for what is not there
};
GRACE_CLONES void run_small(Token& token) { Small(token).run(); }
GRACE_CLONES void run_in_any(Token& token) {
  alignas(64) std::array<std::int32_t, kMaxDevices> opening, saving;
  run(token, token.lanes / kLanes, opening.data(), saving.data());
}

}  // namespace

Cover::Cover(const Cluster& cluster, int num_experts, const CoverCosts& costs)
    : devices_(static_cast<std::size_t>(cluster.num_devices())),
      nodes_(static_cast<std::size_t>(cluster.num_nodes())),
      experts_(static_cast<std::size_t>(num_experts)),
      lanes_((devices_ + kLanes - 1) / kLanes * kLanes) {
  double dearest = std::max(costs.node, costs.device);
  for (const double price : costs.price) dearest = std::max(dearest, price);
  unit_ = dearest > 0 ? dearest / kDearest : 1;
  device_cost_ = static_cast<std::int32_t>(std::lround(costs.device / unit_));
  for (std::size_t d = 0; d < devices_; ++d) {
    const DeviceId device(static_cast<std::int32_t>(d));
    node_of_.push_back(cluster.node_of(device).value);
    for (std::size_t n = 0; n < nodes_; ++n) {
      const NodeId node(static_cast<std::int32_t>(n));
      entry_.push_back(cluster.entry_of(node, device).value);
    }
  }
  opening_.assign(devices_ * nodes_ * lanes_, kNever);
  for (std::size_t s = 0; s < devices_; ++s)
    for (std::size_t d = 0; d < devices_; ++d)
      opening_[(s * nodes_ + node_of(d)) * lanes_ + d] = entry(s, node_of(d)) == d ? 0 : device_cost_;
  double mean_price = 0;
  for (const double price : costs.price) mean_price += price / static_cast<double>(devices_);
  const double most = kSurcharge * (mean_price > 0 ? mean_price : costs.device) / unit_;
  surcharges_.assign(kSurcharges * lanes_, 0);
  for (std::size_t d = 0; d < devices_; ++d) {
    // Each device has all of them once, in an order of its own, so that none is the dearer one for it.
    std::array<int, kSurcharges> order;
    std::iota(order.begin(), order.end(), 0);
    Rng(d).shuffle(std::span<int>(order));
    for (std::size_t r = 0; r < kSurcharges; ++r)
      surcharges_[r * lanes_ + d] = static_cast<std::int32_t>(most * order[r] / double{kSurcharges});
  }
  hosts_.assign(experts_ * devices_, 0);
  row_.assign(experts_ * lanes_, kFar);
  node_hosts_.assign(experts_ * nodes_, 0);
  node_price_.assign(experts_ * nodes_, kFar);
  price_.assign(devices_, 0);
  if (!costs.price.empty()) set_prices(costs.price);
}

void Cover::set_prices(std::span<const double> prices) {
  GRACE_CHECK(prices.size() == devices_, "a price for each device");
  for (std::size_t d = 0; d < devices_; ++d)
    price_[d] =
        static_cast<std::int32_t>(std::lround(std::clamp(prices[d] / unit_, 0.0, double{kHighestPrice})));
  lowest_price_ = *std::ranges::min_element(price_);
  for (std::size_t e = 0; e < experts_; ++e) fill_row(e);
}

void Cover::set_host(ExpertId expert, DeviceId device, bool hosts) {
  hosts_[expert.idx() * devices_ + device.idx()] = hosts ? 1 : 0;
  fill_row(expert.idx());
}

void Cover::fill_row(std::size_t expert) {
  std::int32_t* row = &row_[expert * lanes_];
  std::fill_n(&node_hosts_[expert * nodes_], nodes_, std::uint8_t{0});
  std::fill_n(&node_price_[expert * nodes_], nodes_, kFar);
  for (std::size_t d = 0; d < devices_; ++d) {
    const bool hosts = hosts_[expert * devices_ + d] != 0;
    row[d] = hosts ? price_[d] : kFar;
    if (!hosts) continue;
    node_hosts_[expert * nodes_ + node_of(d)] = 1;
    std::int32_t& least = node_price_[expert * nodes_ + node_of(d)];
    least = std::min(least, row[d]);
  }
}

const std::int32_t* Cover::surcharges_of(std::span<const std::uint16_t> experts) const {
  // The same for any order of the experts: finalised one by one, added up, and once more.
  std::uint32_t hash = 0;
  for (const std::uint16_t expert : experts) {
    std::uint32_t h = (expert + 1U) * 0x9E3779B1U;
    h ^= h >> 15;
    hash += h * 0x85EBCA6BU;
  }
  hash ^= hash >> 16;
  hash *= 0xC2B2AE35U;
  return &surcharges_[(hash >> (32 - kSurchargeBits)) * lanes_];
}

double Cover::price(std::span<const std::uint16_t> experts, std::size_t device) const {
  return unit_ * (price_[device] + surcharges_of(experts)[device]);
}

Cover::Visit Cover::route(std::span<const std::uint16_t> experts, std::size_t source,
                          std::int32_t* device_of) const {
  GRACE_CHECK(experts.size() <= kMaxExpertsPerToken, "too many experts for one token");
  Token token;
  token.count = experts.size();
  token.lanes = lanes_;
  token.device_of = device_of;
  token.device_cost = device_cost_;
  token.lowest_price = lowest_price_;
  token.surcharge = surcharges_of(experts);
  token.num_nodes = 0;
  token.num_opened = 0;
  const auto enter = [&](std::size_t node) {
    token.opening[token.num_nodes] = &opening_[(source * nodes_ + node) * lanes_];
    token.entries[token.num_nodes++] = entry_[source * nodes_ + node];
  };
  enter(node_of(source));

  // 1. Nodes for what the own one lacks: most of it first, then the lower price.
  std::array<std::uint16_t, kMaxExpertsPerToken> missing;
  std::size_t num_missing = 0;
  for (std::size_t k = 0; k < token.count; ++k) {
    token.rows[k] = &row_[experts[k] * lanes_];
    token.current[k] = kFar;
    missing[num_missing] = experts[k];
    num_missing += node_hosts_[experts[k] * nodes_ + node_of(source)] == 0 ? 1 : 0;
  }
  std::array<std::size_t, kMaxExpertsPerToken> entered;
  Visit visit;
  while (num_missing > 0) {
    std::size_t best = 0;
    std::int64_t least = 0;
    for (std::size_t n = 0; n < nodes_; ++n) {
      std::int64_t sum = 0;
      for (std::size_t i = 0; i < num_missing; ++i) sum += node_price_[missing[i] * nodes_ + n];
      if (n > 0 && sum >= least) continue;
      best = n;
      least = sum;
    }
    if (least >= std::int64_t{kFar} * static_cast<std::int64_t>(num_missing)) break;  // no node has any
    entered[token.num_nodes - 1] = best;
    enter(best);
    std::size_t left = 0;
    for (std::size_t i = 0; i < num_missing; ++i) {
      missing[left] = missing[i];
      left += node_hosts_[missing[i] * nodes_ + best] == 0 ? 1 : 0;
    }
    num_missing = left;
  }
  // 2. Devices that cost nothing, 3. devices that save, 4. devices that no longer do.
  lanes_ == kLanes&& token.count <= kLanes && !always_general_ ? run_small(token) : run_in_any(token);

  // Opened devices are used; an entered node might not be, where a later one holds its experts cheaper.
  visit.devices = static_cast<int>(token.num_opened);
  for (std::size_t n = 1; n < token.num_nodes; ++n) {
    bool used = false;
    for (std::size_t k = 0; k < token.count && !used; ++k)
      used = node_of(static_cast<std::size_t>(device_of[k])) == entered[n - 1];
    visit.nodes += used ? 1 : 0;
  }
  return visit;
}

}  // namespace grace
