#include "grace/routing/cover.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "grace/base/check.h"

namespace grace {
namespace {

constexpr std::size_t kLanes = 8;  // loops over lanes are whole vectors
// A host that is not: above any price, and small enough that sums keep the cents. A device that may not be
// opened: above what it could save.
constexpr float kFar = 512;
constexpr float kNever = 1e6F;
constexpr float kDearest = 16;  // what the dearest cost is scaled to
constexpr float kTie = 1e-4F;   // savings closer than this are equal

std::size_t round_up(std::size_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// What each of `lanes` would save if opened: the sum over experts of what they pay now above their row.
void savings_of(const float* rows[], const float* current, std::size_t experts, std::size_t lanes,
                float* saving) {
  for (std::size_t first = 0; first < lanes; first += kLanes) {
    std::array<float, kLanes> sum{};
    for (std::size_t k = 0; k < experts; ++k) {
      const float* row = rows[k] + first;
      const float now = current[k];
      for (std::size_t l = 0; l < kLanes; ++l) sum[l] += std::max(0.0F, now - row[l]);
    }
    for (std::size_t l = 0; l < kLanes; ++l) saving[first + l] = sum[l];
  }
}

}  // namespace

struct Cover::Token {
  std::size_t source;
  std::size_t count;
  const float* rows[kMaxExpertsPerToken];       // device rows
  const float* node_rows[kMaxExpertsPerToken];  // node rows
  float current[kMaxExpertsPerToken];           // price each expert pays
  std::int32_t* device_of;
  std::size_t opened_nodes[kMaxExpertsPerToken + 1];  // the own first
  std::size_t num_nodes;
  std::size_t opened[kMaxExpertsPerToken];  // devices that were paid for
  std::size_t num_opened;
};

Cover::Cover(const Cluster& cluster, int num_experts, const CoverCosts& costs)
    : devices_(static_cast<std::size_t>(cluster.num_devices())),
      nodes_(static_cast<std::size_t>(cluster.num_nodes())),
      experts_(static_cast<std::size_t>(num_experts)),
      device_lanes_(round_up(devices_)),
      node_lanes_(round_up(nodes_)) {
  double dearest = std::max(costs.node, costs.device);
  for (const double price : costs.price) dearest = std::max(dearest, price);
  unit_ = dearest > 0 ? static_cast<float>(dearest) / kDearest : 1;
  node_cost_ = static_cast<float>(costs.node) / unit_;
  device_cost_ = static_cast<float>(costs.device) / unit_;
  for (std::size_t d = 0; d < devices_; ++d) {
    const DeviceId device(static_cast<std::int32_t>(d));
    node_of_.push_back(cluster.node_of(device).value);
    for (std::size_t n = 0; n < nodes_; ++n) {
      const NodeId node(static_cast<std::int32_t>(n));
      const int local = cluster.local_index_of(device) % cluster.devices_in(node);
      entry_.push_back(cluster.first_device_of(node).value + local);
    }
  }
  opening_.assign(devices_ * nodes_ * device_lanes_, kNever);
  for (std::size_t s = 0; s < devices_; ++s)
    for (std::size_t d = 0; d < devices_; ++d)
      opening_[(s * nodes_ + node_of(d)) * device_lanes_ + d] = entry(s, node_of(d)) == d ? 0 : device_cost_;
  hosts_.assign(experts_ * devices_, 0);
  device_row_.assign(experts_ * device_lanes_, kFar);
  node_row_.assign(experts_ * node_lanes_, kFar);
  price_.assign(devices_, 0);
  if (!costs.price.empty()) set_prices(costs.price);
}

void Cover::set_prices(std::span<const double> prices) {
  GRACE_CHECK(prices.size() == devices_, "a price for each device");
  for (std::size_t d = 0; d < devices_; ++d)
    price_[d] = std::clamp(static_cast<float>(prices[d]) / unit_, 0.0F, kFar / 4);
  for (std::size_t e = 0; e < experts_; ++e) fill_row(e);
}

void Cover::set_host(ExpertId expert, DeviceId device, bool hosts) {
  hosts_[expert.idx() * devices_ + device.idx()] = hosts ? 1 : 0;
  fill_row(expert.idx());
}

void Cover::fill_row(std::size_t expert) {
  float* row = &device_row_[expert * device_lanes_];
  float* node_row = &node_row_[expert * node_lanes_];
  std::fill_n(node_row, node_lanes_, kFar);
  for (std::size_t d = 0; d < devices_; ++d) {
    row[d] = hosts_[expert * devices_ + d] != 0 ? price_[d] : kFar;
    node_row[node_of(d)] = std::min(node_row[node_of(d)], row[d]);
  }
}

// Nodes, until every expert has one: the one that saves most.
void Cover::open_nodes(Token& token) const {
  const std::size_t own = node_of(token.source);
  token.opened_nodes[0] = own;
  token.num_nodes = 1;
  if (nodes_ == 1) return;
  for (std::size_t k = 0; k < token.count; ++k) token.current[k] = token.node_rows[k][own];
  std::array<float, kMaxDevices> saving;
  while (token.num_nodes <= token.count) {
    savings_of(token.node_rows, token.current, token.count, node_lanes_, saving.data());
    std::size_t best = 0;
    for (std::size_t n = 1; n < nodes_; ++n)
      if (saving[n] > saving[best] + kTie) best = n;
    if (saving[best] <= node_cost_ + kTie) break;
    token.opened_nodes[token.num_nodes++] = best;
    for (std::size_t k = 0; k < token.count; ++k)
      token.current[k] = std::min(token.current[k], token.node_rows[k][best]);
  }
}

// Devices of the opened nodes: first those that cost nothing, then the one that saves most.
void Cover::open_devices(Token& token) const {
  std::fill_n(token.current, token.count, kFar);
  std::array<float, kMaxDevices> opening;
  std::fill_n(opening.data(), device_lanes_, kNever);
  for (std::size_t i = 0; i < token.num_nodes; ++i) {
    const std::size_t node = token.opened_nodes[i];
    const float* of_node = &opening_[(token.source * nodes_ + node) * device_lanes_];
    for (std::size_t l = 0; l < device_lanes_; ++l) opening[l] = std::min(opening[l], of_node[l]);
    const std::size_t free = entry(token.source, node);
    for (std::size_t k = 0; k < token.count; ++k) {
      if (token.rows[k][free] >= token.current[k]) continue;
      token.current[k] = token.rows[k][free];
      token.device_of[k] = static_cast<std::int32_t>(free);
    }
  }
  token.num_opened = 0;
  std::array<float, kMaxDevices> saving;
  while (token.num_opened < token.count) {
    savings_of(token.rows, token.current, token.count, device_lanes_, saving.data());
    std::size_t best = 0;
    float most = saving[0] - opening[0];
    for (std::size_t d = 1; d < devices_; ++d) {
      if (saving[d] - opening[d] <= most + kTie) continue;
      best = d;
      most = saving[d] - opening[d];
    }
    if (most <= kTie) break;
    token.opened[token.num_opened++] = best;
    for (std::size_t k = 0; k < token.count; ++k) {
      if (token.rows[k][best] >= token.current[k]) continue;
      token.current[k] = token.rows[k][best];
      token.device_of[k] = static_cast<std::int32_t>(best);
    }
  }
}

// A device opened early may have been made idle, or nearly so, by those opened later.
void Cover::close_devices(Token& token) const {
  if (token.num_opened < 2) return;
  for (std::size_t i = 0; i < token.num_opened; ++i) {
    const auto closing = static_cast<std::int32_t>(token.opened[i]);
    float dearer = 0;
    std::int32_t other_of[kMaxExpertsPerToken];
    for (std::size_t k = 0; k < token.count && dearer < device_cost_; ++k) {
      other_of[k] = token.device_of[k];
      if (token.device_of[k] != closing) continue;
      float least = kFar;
      const auto consider = [&](std::size_t d) {
        if (token.rows[k][d] >= least) return;
        least = token.rows[k][d];
        other_of[k] = static_cast<std::int32_t>(d);
      };
      for (std::size_t n = 0; n < token.num_nodes; ++n) consider(entry(token.source, token.opened_nodes[n]));
      for (std::size_t j = 0; j < token.num_opened; ++j)
        if (j != i) consider(token.opened[j]);
      dearer += least - token.current[k];
    }
    if (dearer >= device_cost_ - kTie) continue;
    for (std::size_t k = 0; k < token.count; ++k) {
      token.device_of[k] = other_of[k];
      token.current[k] = token.rows[k][static_cast<std::size_t>(other_of[k])];
    }
    token.opened[i] = token.opened[--token.num_opened];
    --i;
  }
}

Cover::Visit Cover::route(std::span<const std::uint16_t> experts, std::size_t source,
                          std::int32_t* device_of) const {
  GRACE_CHECK(experts.size() <= kMaxExpertsPerToken, "too many experts for one token");
  Token token;
  token.source = source;
  token.count = experts.size();
  token.device_of = device_of;
  for (std::size_t k = 0; k < experts.size(); ++k) {
    token.rows[k] = &device_row_[experts[k] * device_lanes_];
    token.node_rows[k] = &node_row_[experts[k] * node_lanes_];
  }
  open_nodes(token);
  open_devices(token);
  close_devices(token);

  // What is used: opened devices always are, entries perhaps.
  Visit visit;
  std::array<std::uint64_t, kMaxDevices / 64> device_seen{};
  for (std::size_t k = 0; k < token.count; ++k) {
    const auto d = static_cast<std::size_t>(device_of[k]);
    std::uint64_t& word = device_seen[d / 64];
    const std::uint64_t bit = std::uint64_t{1} << (d % 64);
    if ((word & bit) != 0) continue;
    word |= bit;
    if (entry(source, node_of(d)) != d) ++visit.devices;
  }
  for (std::size_t i = 1; i < token.num_nodes; ++i) {
    bool used = false;
    for (std::size_t k = 0; k < token.count && !used; ++k)
      used = node_of(static_cast<std::size_t>(device_of[k])) == token.opened_nodes[i];
    visit.nodes += used ? 1 : 0;
  }
  return visit;
}

}  // namespace grace
