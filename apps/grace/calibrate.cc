#include "calibrate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>

#include "grace/kernels/kernels.h"

namespace grace::app {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr int kLeastRounds = 3;
constexpr double kAbsent = -1;  // the time of an exchange that a rank has no part in

// What one device sends at most in one exchange: the first for the latency; the last is of a layer's order.
constexpr std::array<double, 5> kSizes = {64, 16 << 10, 256 << 10, 1 << 20, 4 << 20};
// What a device sends in one round at one size.
constexpr double kTimedBytes = 4 << 20;
constexpr int kMostTurns = 32;

// ---- who sits where ----

struct Layout {
  Cluster shape;
  std::vector<int> host_of;  // [ranks]
  int ranks_here = 1;        // on this rank's host
};

Result<std::vector<std::string>> host_names(Transport& transport) {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  const auto mine = std::as_bytes(std::span(name.data(), std::strlen(name.data())));
  std::vector<std::string> names;
  for (const std::vector<std::byte>& bytes : GRACE_TRY(transport.all_gather(mine))) {
    std::string& text = names.emplace_back(bytes.size(), ' ');
    std::memcpy(text.data(), bytes.data(), bytes.size());
  }
  return names;
}

// A node for each host.
Result<Cluster> shape_by_host(const std::vector<std::string>& names, const std::vector<int>& host_of) {
  Cluster shape;
  for (std::size_t rank = 0; rank < names.size(); ++rank) {
    const auto host = static_cast<std::size_t>(host_of[rank]);
    if (host + 1 < shape.devices_of_node.size())
      return invalid_input(
          fmt::format("rank {} is on host {} again, after ranks of host {}: a node's ranks must be "
                      "consecutive (mpirun --map-by slot)",
                      rank, names[rank], names[rank - 1]));
    shape.devices_of_node.resize(host + 1);
    shape.devices_of_node[host].emplace_back();
  }
  return shape;
}

Result<Layout> layout_of(Transport& transport, const std::optional<Cluster>& shape) {
  const std::vector<std::string> names = GRACE_TRY(host_names(transport));
  Layout layout;
  std::vector<std::string> hosts;
  for (const std::string& name : names) {
    const auto found = std::ranges::find(hosts, name);
    layout.host_of.push_back(static_cast<int>(found - hosts.begin()));
    if (found == hosts.end()) hosts.push_back(name);
  }
  const auto me = static_cast<std::size_t>(transport.rank());
  layout.ranks_here = static_cast<int>(std::ranges::count(names, names[me]));
  layout.shape = shape.has_value() ? *shape : GRACE_TRY(shape_by_host(names, layout.host_of));
  if (layout.shape.num_devices() != transport.size())
    return invalid_input(fmt::format("calibrate: {} ranks, the cluster has {} devices", transport.size(),
                                     layout.shape.num_devices()));
  return layout;
}

// ---- exchanges ----

enum Kind : std::size_t { kDevices, kNodes, kTwoDevices, kTwoNodes, kNumKinds };
constexpr std::array<std::string_view, kNumKinds> kKindNames = {"between devices", "between nodes",
                                                                "between two devices", "between two nodes"};

// One rank's part in one exchange.
struct Exchange {
  Kind kind = kDevices;
  double bytes = 0;                  // the most that one end sends or receives, alike on all ranks
  std::vector<int> group;            // empty: not in it
  std::vector<std::size_t> offsets;  // [group + 1]
  bool takes_turns = false;          // of two ranks, one message at a time
  int turns = 1;                     // timed, two calls each: there and back where ranks take turns
};

class Exchanges {
 public:
  Exchanges(const Cluster& shape, int rank) : shape_(shape), rank_(rank) {
    for (int n = 0; n < shape.num_nodes(); ++n)
      largest_node_ = std::max(largest_node_, shape.devices_in(NodeId(n)));
    for (const double bytes : kSizes) {
      if (largest_node_ > 1) add_between_devices(bytes);
      if (shape.num_nodes() > 1) add_between_nodes(bytes);
      add_pairs(bytes);
    }
  }
  std::vector<Exchange> take() { return std::move(list_); }

 private:
  std::vector<int> ranks_of(NodeId node) const {
    std::vector<int> ranks;
    for (int i = 0; i < shape_.devices_in(node); ++i) ranks.push_back(shape_.first_device_of(node).value + i);
    return ranks;
  }

  template <typename BytesFor>
  void add(Kind kind, double bytes, std::vector<int> group, BytesFor bytes_for) {
    Exchange& exchange = list_.emplace_back();
    exchange.kind = kind;
    exchange.bytes = bytes;
    exchange.turns = std::clamp(static_cast<int>(kTimedBytes / bytes / 2), 1, kMostTurns);
    if (std::ranges::find(group, rank_) == group.end()) return;
    exchange.group = std::move(group);
    exchange.offsets = {0};
    for (const int to : exchange.group) exchange.offsets.push_back(exchange.offsets.back() + bytes_for(to));
  }

  // Every node inside itself at the same time; devices of the largest node send most.
  void add_between_devices(double bytes) {
    const auto part = static_cast<std::size_t>(std::ceil(bytes / (largest_node_ - 1)));
    const std::vector<int> group = ranks_of(shape_.node_of(DeviceId(rank_)));
    add(kDevices, static_cast<double>(part) * (largest_node_ - 1), group,
        [&](int to) { return to == rank_ ? std::size_t{0} : part; });
    if (group.size() < 2) list_.back().group.clear();
  }

  // Everyone to everyone outside its node; an end is a node.
  void add_between_nodes(double bytes) {
    std::vector<int> everyone;
    int most = 0;      // pairs of ranks that leave a node
    int farthest = 0;  // ranks outside a device's node
    for (int n = 0; n < shape_.num_nodes(); ++n) {
      const int inside = shape_.devices_in(NodeId(n)), outside = shape_.num_devices() - inside;
      most = std::max(most, inside * outside);
      farthest = std::max(farthest, outside);
      std::ranges::copy(ranks_of(NodeId(n)), std::back_inserter(everyone));
    }
    const auto part = static_cast<std::size_t>(std::ceil(bytes / farthest));
    const NodeId mine = shape_.node_of(DeviceId(rank_));
    add(kNodes, static_cast<double>(part) * most, everyone,
        [&](int to) { return shape_.node_of(DeviceId(to)) == mine ? std::size_t{0} : part; });
  }

  // The first two ranks of the first node that has two, and the first rank of the first two nodes.
  void add_pairs(double bytes) {
    const auto add_pair = [&](Kind kind, int a, int b) {
      add(kind, bytes, {a, b}, [&](int to) { return to == rank_ ? 0 : static_cast<std::size_t>(bytes); });
      list_.back().takes_turns = true;
    };
    for (int n = 0; n < shape_.num_nodes(); ++n) {
      const int first = shape_.first_device_of(NodeId(n)).value;
      if (shape_.devices_in(NodeId(n)) < 2) continue;
      add_pair(kTwoDevices, first, first + 1);
      break;
    }
    if (shape_.num_nodes() > 1) add_pair(kTwoNodes, 0, shape_.first_device_of(NodeId(1)).value);
  }

  const Cluster& shape_;
  const int rank_;
  int largest_node_ = 1;
  std::vector<Exchange> list_;
};

// ---- one rank's round ----

class Meter {
 public:
  Meter(Transport& transport, ThreadPool& pool, const Layout& layout, const kernels::Arithmetic& arithmetic)
      : transport_(transport),
        pool_(pool),
        exchanges_(Exchanges(layout.shape, transport.rank()).take()),
        send_(static_cast<std::size_t>(2 * kSizes.back()) + 4096 * layout.host_of.size()) {
    // Together the ranks of a host hold several times any cache's bytes, so that weights come from memory.
    constexpr double kBytesOfHost = 512e6, kLeastBytes = 48e6;
    const double bytes = std::max(kLeastBytes, kBytesOfHost / layout.ranks_here);
    const std::vector<float> values(static_cast<std::size_t>(kHidden) * kFfn, 0.01F);
    const auto make = [&] { return kernels::pack_expert(values, values, values, kHidden, kFfn, arithmetic); };
    experts_.push_back(make());
    const auto count = static_cast<std::size_t>(std::ceil(bytes / expert_bytes()));
    while (experts_.size() < std::max(count, static_cast<std::size_t>(pool.num_threads())))
      experts_.push_back(make());
  }

  const std::vector<Exchange>& exchanges() const { return exchanges_; }
  // After a round that took too long for the time there is.
  void hurry() {
    for (Exchange& exchange : exchanges_) exchange.turns = 1;
  }

  // Seconds of each exchange, then this rank's operations and bytes per second. Collective.
  Result<std::vector<double>> round() {
    std::vector<double> row;
    for (const Exchange& exchange : exchanges_) row.push_back(GRACE_TRY(time_of(exchange)));
    GRACE_TRY(transport_.barrier());
    row.push_back(6.0 * kHidden * kFfn * kManyRows * experts_per_s(kManyRows));
    GRACE_TRY(transport_.barrier());
    row.push_back(expert_bytes() * experts_per_s(1));
    return row;
  }

 private:
  static constexpr int kHidden = 1024, kFfn = 512;
  static constexpr int kManyRows = 256;        // where arithmetic is the bound
  static constexpr double kWorkSeconds = 0.1;  // of each kind and round: many time slices of a shared core

  // Of one expert's weights, as the kernels read them.
  double expert_bytes() const {
    return static_cast<double>(experts_.front().gate_up.panels.size() + experts_.front().down.panels.size());
  }

  Result<double> time_of(const Exchange& exchange) {
    GRACE_TRY(transport_.barrier());
    const bool takes_part = !exchange.group.empty();
    // Two in turn: what is read in place may be written again once the other has carried something.
    std::unique_ptr<Channel> channels[2];
    for (auto& channel : channels)
      channel = transport_.open(takes_part ? exchange.group : std::vector<int>{transport_.rank()},
                                Reading::kInPlace);
    if (!takes_part) return kAbsent;
    GRACE_TRY(once(exchange, *channels[1], 0));  // lines the ranks up
    std::vector<double> seconds;
    for (int i = 0; i < exchange.turns; ++i) {
      const Clock::time_point start = Clock::now();
      GRACE_TRY(once(exchange, *channels[0], 0));
      GRACE_TRY(once(exchange, *channels[1], 1));
      seconds.push_back(seconds_since(start) / 2);
    }
    return figure_of(seconds).value;  // a median: a rank may lose its core for milliseconds at any time
  }

  // Until what came has been read once: where memory is shared nothing else is done with it.
  Status once(const Exchange& exchange, Channel& channel, int turn) {
    const bool listens =
        exchange.takes_turns && exchange.group[static_cast<std::size_t>(turn % 2)] != transport_.rank();
    for (std::size_t i = 0; i < exchange.group.size(); ++i) {
      channel.outgoing(i).clear();
      const std::size_t bytes = exchange.offsets[i + 1] - exchange.offsets[i];
      if (!listens && i != channel.own() && bytes > 0)
        std::memcpy(channel.outgoing(i).append(bytes), send_.data() + exchange.offsets[i], bytes);
    }
    GRACE_TRY(channel.begin());
    GRACE_TRY(channel.finish());
    for (std::size_t i = 0; i < exchange.group.size(); ++i)
      received_.assign(channel.received(i).begin(), channel.received(i).end());
    return {};
  }

  // Each thread walks through experts of its own, until the time is over.
  double experts_per_s(int rows) {
    const auto threads = static_cast<std::size_t>(pool_.num_threads());
    std::vector<double> rates(threads);
    pool_.for_each(threads, [&](std::size_t item, int) {
      const std::vector<float> x(static_cast<std::size_t>(rows) * kHidden, 0.01F);
      std::vector<float> y(x.size());
      std::vector<const float*> in;
      std::vector<float*> out;
      for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
        in.push_back(x.data() + r * kHidden);
        out.push_back(y.data() + r * kHidden);
      }
      const std::size_t begin = item * experts_.size() / threads;
      const std::size_t count = (item + 1) * experts_.size() / threads - begin;
      const Clock::time_point start = Clock::now();
      std::size_t done = 0;
      for (; done == 0 || seconds_since(start) < kWorkSeconds; ++done)
        kernels::expert_ffn(in, experts_[begin + (next_expert_ + done) % count], out);
      rates[item] = static_cast<double>(done) / seconds_since(start);
    });
    // The next walk goes on elsewhere: what this one left in the caches does not help it.
    next_expert_ += experts_.size() / 2;
    double sum = 0;
    for (const double rate : rates) sum += rate;
    return sum;
  }

  Transport& transport_;
  ThreadPool& pool_;
  std::vector<Exchange> exchanges_;
  std::vector<kernels::PackedExpert> experts_;
  std::size_t next_expert_ = 0;
  std::vector<std::byte> send_, received_;
};

// ---- rounds ----

// Everyone's row, [ranks].
Result<std::vector<std::vector<double>>> share(Transport& transport, const std::vector<double>& row) {
  std::vector<std::vector<double>> rows;
  for (const std::vector<std::byte>& bytes : GRACE_TRY(transport.all_gather(std::as_bytes(std::span(row))))) {
    std::vector<double>& values = rows.emplace_back(bytes.size() / sizeof(double));
    std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  return rows;
}

// Of the measured rounds: seconds of each exchange, until its slowest rank was done, and rates by rank.
struct Samples {
  std::vector<std::vector<double>> exchange_seconds;  // [exchanges][rounds]
  std::vector<std::vector<double>> flops, bytes;      // [rounds][ranks]

  void add(const std::vector<std::vector<double>>& rows) {
    const std::size_t exchanges = rows.front().size() - 3;  // then the two rates and the clock
    exchange_seconds.resize(exchanges);
    for (std::size_t i = 0; i < exchanges; ++i) {
      double slowest = kAbsent;
      for (const auto& row : rows) slowest = std::max(slowest, row[i]);
      exchange_seconds[i].push_back(slowest);
    }
    auto& flops_row = flops.emplace_back();
    auto& bytes_row = bytes.emplace_back();
    for (const auto& row : rows) {
      flops_row.push_back(row[exchanges]);
      bytes_row.push_back(row[exchanges + 1]);
    }
  }
};

Status measure(Transport& transport, Meter& meter, double seconds, Samples& samples, Calibration& result,
               const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const Clock::time_point start = Clock::now();
  for (int round = 0;; ++round) {
    std::vector<double> row = GRACE_TRY(meter.round());
    row.push_back(seconds_since(start));
    const std::vector<std::vector<double>> rows = GRACE_TRY(share(transport, row));
    const double elapsed = rows.front().back();  // rank 0's clock, so that all stop together
    if (round > 0) samples.add(rows);
    if (round == 0 && elapsed > seconds / (kLeastRounds + 1)) meter.hurry();
    progress(static_cast<std::int64_t>(1000 * std::min(elapsed, seconds)),
             static_cast<std::int64_t>(1000 * seconds));
    result.rounds = round;
    result.seconds = elapsed;
    if (round >= kLeastRounds && elapsed * (round + 2) / (round + 1) > seconds) return {};
  }
}

std::optional<LinkFit> fit_of(const std::vector<Exchange>& exchanges, const Samples& samples, Kind kind) {
  std::vector<ExchangeSample> of_kind;
  for (std::size_t i = 0; i < exchanges.size(); ++i)
    if (exchanges[i].kind == kind)
      for (const double seconds : samples.exchange_seconds[i])
        of_kind.push_back({exchanges[i].bytes, seconds});
  if (of_kind.empty()) return std::nullopt;
  return fit_link(of_kind);
}

// One speed stands for both rates: their geometric mean.
std::vector<double> speeds_of(const Samples& samples) {
  std::vector<std::vector<double>> rates = samples.flops;
  for (std::size_t round = 0; round < rates.size(); ++round)
    for (std::size_t rank = 0; rank < rates[round].size(); ++rank)
      rates[round][rank] = std::sqrt(rates[round][rank]) * std::sqrt(samples.bytes[round][rank]);
  return relative_speeds(rates);
}

void fill_cluster(const Samples& samples, Calibration& result) {
  Cluster& cluster = result.cluster;
  const LinkFit& devices =
      result.between_devices.has_value() ? *result.between_devices : *result.between_nodes;
  cluster.between_devices = devices.link;
  cluster.between_nodes = result.between_nodes.has_value() ? result.between_nodes->link : devices.link;
  cluster.flops_per_s = result.flops_per_s.value;
  cluster.memory_bytes_per_s = result.memory_bytes_per_s.value;
  const std::vector<double> speeds = speeds_of(samples);
  std::size_t rank = 0;
  for (auto& node : cluster.devices_of_node)
    for (Device& device : node) device.speed = speeds[rank++];
}

}  // namespace

int Calibration::num_hosts() const { return *std::ranges::max_element(host_of) + 1; }

Result<Calibration> calibrate(Transport& transport, ThreadPool& pool, const CalibrateOptions& options,
                              const std::function<void(std::int64_t, std::int64_t)>& progress) {
  if (transport.size() < 2) return invalid_input("calibrate: 1 rank has no link to measure, at least 2 have");
  const Layout layout = GRACE_TRY(layout_of(transport, options.shape));
  Calibration result;
  result.cluster = layout.shape;
  result.host_of = layout.host_of;
  Meter meter(transport, pool, layout, options.arithmetic);
  Samples samples;
  GRACE_TRY(measure(transport, meter, options.seconds, samples, result, progress));
  const std::vector<Exchange>& exchanges = meter.exchanges();
  for (std::size_t i = 0; i < exchanges.size(); ++i)
    result.exchanges.push_back({std::string(kKindNames[exchanges[i].kind]), exchanges[i].bytes,
                                figure_of(samples.exchange_seconds[i])});
  result.between_devices = fit_of(exchanges, samples, kDevices);
  result.between_nodes = fit_of(exchanges, samples, kNodes);
  result.two_devices = fit_of(exchanges, samples, kTwoDevices);
  result.two_nodes = fit_of(exchanges, samples, kTwoNodes);
  result.flops_per_s = rate_of(samples.flops);
  result.memory_bytes_per_s = rate_of(samples.bytes);
  fill_cluster(samples, result);
  return result;
}

}  // namespace grace::app
