// The published replication, one knob turned at a time: what is copied, and how much.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "grace/planner/budget.h"
#include "grace/replication/replication.h"
#include "reproduce_claims.h"
#include "reproduce_holdout.h"
#include "reproduce_tables.h"

namespace grace::app {
namespace {

double copies_in(const LayerPlan& layer) {
  std::size_t copies = 0;
  for (const std::vector<ExpertId>& replicas : layer.replicas_of_device) copies += replicas.size();
  return static_cast<double>(copies);
}

double fullest_in(const LayerPlan& layer) {
  std::size_t most = 0;
  for (std::size_t d = 0; d < layer.primaries_of_device.size(); ++d)
    most = std::max(most, layer.primaries_of_device[d].size() + layer.replicas_of_device[d].size());
  return static_cast<double>(most);
}

constexpr std::array kCopyWhatColumns = {
    Column{"copies_per_layer", "copies", 1, 1, false},
    Column{"same_experts", "same experts [%]", 100, 0, false},
    Column{"remote_nodes_per_token", "x", 1, 3},
    Column{"forwards_per_token", "y", 1, 3},
    Column{"load_max_over_mean", "max/mean", 1, 3},
    Column{"load_std", "load deviation", 1, 3},
    Column{"all_to_all", "all-to-all [us]", 1e6, 0},
    Column{"idle", "idle [us]", 1e6, 1},
    Column{"layer_time", "layer [us]", 1e6, 0},
};

// As many copies to as many devices as dynamic replication makes in this layer.
ReplicationRule rule_like_dynamic(const LayerStats& stats, const Cluster& cluster, LayerPlan layer,
                                  HotBy hot_by) {
  replicate_dynamic(stats, cluster, layer);
  std::vector<int> hosts(static_cast<std::size_t>(stats.num_experts), 0);
  for (const std::vector<ExpertId>& replicas : layer.replicas_of_device)
    for (const ExpertId e : replicas) ++hosts[e.idx()];
  ReplicationRule rule;
  rule.hot_by = hot_by;
  rule.num_hosts = *std::ranges::max_element(hosts);
  rule.num_hot = static_cast<int>(std::ranges::count_if(hosts, [](int n) { return n > 0; }));
  return rule;
}

std::vector<bool> copied_in(const LayerPlan& layer, int num_experts) {
  std::vector<bool> copied(static_cast<std::size_t>(num_experts), false);
  for (const std::vector<ExpertId>& replicas : layer.replicas_of_device)
    for (const ExpertId e : replicas) copied[e.idx()] = true;
  return copied;
}

// Of the experts that `layer` copies, the share that `other` copies too; 1 where none is copied.
double share_copied_in_both(const LayerPlan& layer, const LayerPlan& other, int num_experts) {
  const std::vector<bool> mine = copied_in(layer, num_experts);
  const std::vector<bool> theirs = copied_in(other, num_experts);
  double both = 0;
  double all = 0;
  for (std::size_t e = 0; e < mine.size(); ++e) {
    all += mine[e] ? 1 : 0;
    both += mine[e] && theirs[e] ? 1 : 0;
  }
  return all > 0 ? both / all : 1;
}

// That share for as many experts drawn at random from the group they are in.
double share_by_chance(const LayerPlan& layer, int num_experts) {
  const std::vector<bool> copied = copied_in(layer, num_experts);
  const auto count = static_cast<double>(std::ranges::count(copied, true));
  for (const std::vector<ExpertId>& group : layer.primaries_of_device)
    if (std::ranges::any_of(group, [&](ExpertId e) { return copied[e.idx()]; }))
      return count / static_cast<double>(group.size());
  return 1;
}

struct Copying {
  const char* name;
  bool copies;
  HotBy hot_by;
  const char* routing;
};
constexpr std::array kCopyings = {
    Copying{"none", false, HotBy::kLoad, "primary"},
    Copying{"most activated, WRR", true, HotBy::kLoad, "wrr"},
    Copying{"most collaborating, WRR", true, HotBy::kCollaboration, "wrr"},
    Copying{"most activated, TAR", true, HotBy::kLoad, "tar"},
    Copying{"most collaborating, TAR", true, HotBy::kCollaboration, "tar"},
};

void add_overlap(std::span<const LayerPlan> layers, std::span<const LayerPlan> activated,
                 const Subject& subject, Row& row) {
  const int num_experts = subject.trace.num_experts;
  row.add("same_experts", mean_over_layers(layers, [&](std::size_t m, const LayerPlan& layer) {
            return share_copied_in_both(layer, activated[m], num_experts);
          }));
  row.add("by_chance", mean_over_layers(layers, [&](std::size_t, const LayerPlan& layer) {
            return share_by_chance(layer, num_experts);
          }));
}

}  // namespace

Result<ReproducedTable> copy_what_table(const Subject& subject, const Measure& measure) {
  std::vector<Row> rows(kCopyings.size());
  const OnSplit on_split = [&](const Holdout& holdout) -> Status {
    const std::vector<TwoLevels> levels = levels_of(holdout, measure, NodeSizes::kFree);
    const std::vector<LayerPlan> bare = grouped(holdout, measure, levels, kPublishedR);
    std::vector<LayerPlan> activated;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Copying& how = kCopyings[i];
      rows[i].name = how.name;
      std::vector<LayerPlan> layers = bare;
      for (std::size_t m = 0; how.copies && m < layers.size(); ++m) {
        const ReplicationRule rule =
            rule_like_dynamic(holdout.stats[m], measure.cluster, layers[m], how.hot_by);
        if (rule.num_hot > 0) replicate_heaviest_group(holdout.stats[m], measure.cluster, rule, layers[m]);
      }
      rows[i].add("copies_per_layer", mean_over_layers(layers, [](std::size_t, const LayerPlan& layer) {
                    return copies_in(layer);
                  }));
      if (how.copies && activated.empty()) activated = layers;
      if (how.hot_by == HotBy::kCollaboration) add_overlap(layers, activated, subject, rows[i]);
      const Plan plan = plan_of(subject, measure, std::move(layers), how.routing);
      rows[i].add(GRACE_TRY(judged_at(plan, subject, holdout, measure, measure.batch)), subject.sizes);
    }
    return {};
  };
  GRACE_TRY(for_each_split("copy-what", subject, measure, on_split));
  const std::vector<Claim> claims = copy_what_claims(rows);
  return reproduced(
      "copy-what", subject.name,
      table_of(fmt::format("What to copy, HG with r 0.15 and as many copies as DR makes, {}", subject.name),
               "copied", rows, kCopyWhatColumns),
      rows, claims, copy_what_notes(rows, claims));
}

namespace {

// Tokens of a decode step: few enough that reading an expert's weights takes longer than its arithmetic.
constexpr std::int64_t kDecodeBatch = 64;

constexpr std::array kCopiesColumns = {
    Column{"copies_per_layer", "copies", 1, 1, false},
    Column{"slots_per_device_max", "fullest", 1, 1, false},
    Column{"remote_nodes_per_token", "x", 1, 3},
    Column{"load_max_over_mean", "max/mean", 1, 3},
    Column{"compute", "compute [us]", 1e6, 0},
    Column{"layer_time", "layer [us]", 1e6, 0},
    Column{"decode_load_max_over_mean", "decode max/mean", 1, 3},
    Column{"decode_compute", "decode compute [us]", 1e6, 1},
    Column{"decode_layer_time", "decode layer [us]", 1e6, 1},
};

// 0, 1, 2, 4, .. below the largest group, then that: all of every heavy group.
std::vector<int> hot_counts(int num_experts, int num_devices) {
  std::vector<int> counts = {0};
  for (int count = 1; count < std::min(num_experts, 2 * num_experts / num_devices); count *= 2)
    counts.push_back(count);
  counts.push_back(num_experts);
  return counts;
}

// Every expert on every device: data parallelism.
void copy_everything(const LayerStats& stats, LayerPlan& layer) {
  for (std::size_t d = 0; d < layer.primaries_of_device.size(); ++d) {
    const std::vector<ExpertId>& own = layer.primaries_of_device[d];
    layer.replicas_of_device[d].clear();
    for (int e = 0; e < stats.num_experts; ++e)
      if (!std::ranges::binary_search(own, ExpertId(e))) layer.replicas_of_device[d].push_back(ExpertId(e));
  }
  const double even = std::accumulate(layer.predicted_load.begin(), layer.predicted_load.end(), 0.0) /
                      static_cast<double>(layer.predicted_load.size());
  std::ranges::fill(layer.predicted_load, even);
}

// Load over the mean of the second heaviest device once the heaviest group is on all devices and served at
// home.
double overshoot_of(std::span<const LayerPlan> bare, const Holdout& holdout) {
  return mean_over_layers(bare, [&](std::size_t m, const LayerPlan& layer) {
    const std::vector<double> shares = shares_of(holdout.judged_stats[m], layer.primaries_of_device);
    const auto devices = static_cast<double>(shares.size());
    return shares.size() < 2 ? 1.0 : (shares[1] + shares[0] / devices) * devices;
  });
}

Status add_copies(std::vector<LayerPlan> layers, const Subject& subject, const Holdout& holdout,
                  const Measure& measure, Row& row) {
  row.add("copies_per_layer",
          mean_over_layers(layers, [](std::size_t, const LayerPlan& layer) { return copies_in(layer); }));
  row.add("slots_per_device_max",
          mean_over_layers(layers, [](std::size_t, const LayerPlan& layer) { return fullest_in(layer); }));
  const Plan plan = plan_of(subject, measure, std::move(layers), "tar");
  row.add(GRACE_TRY(judged_at(plan, subject, holdout, measure, measure.batch)), subject.sizes);
  row.add(GRACE_TRY(judged_at(plan, subject, holdout, measure, kDecodeBatch)), subject.sizes, "decode_");
  return {};
}

bool holds_everything(const Cluster& cluster, int num_experts) {
  for (const std::vector<Device>& node : cluster.devices_of_node)
    for (const Device& device : node)
      if (device.slots > 0 && device.slots < num_experts) return false;
  return true;
}

}  // namespace

Result<ReproducedTable> copies_table(const Subject& subject, const Measure& measure) {
  const int num_experts = subject.trace.num_experts;
  const std::vector<int> counts = hot_counts(num_experts, measure.cluster.num_devices());
  const bool with_everything = holds_everything(measure.cluster, num_experts);
  std::vector<Row> rows(counts.size() + (with_everything ? 1 : 0));
  const OnSplit on_split = [&](const Holdout& holdout) -> Status {
    const std::vector<TwoLevels> levels = levels_of(holdout, measure, NodeSizes::kFree);
    const std::vector<LayerPlan> bare = grouped(holdout, measure, levels, kPublishedR);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::vector<LayerPlan> layers = bare;
      for (std::size_t m = 0; m < layers.size(); ++m) {
        if (i == counts.size()) copy_everything(holdout.stats[m], layers[m]);
        if (i == counts.size() || counts[i] == 0) continue;
        const ReplicationRule rule{.num_hosts = std::max(1, measure.cluster.num_devices() - 1),
                                   .num_hot = counts[i]};
        replicate_heaviest_group(holdout.stats[m], measure.cluster, rule, layers[m]);
      }
      rows[i].name = i == counts.size()         ? "every expert everywhere"
                     : counts[i] == num_experts ? "all of the heaviest group"
                                                : fmt::format("{} of the heaviest group", counts[i]);
      rows[i].add("overshoot", overshoot_of(bare, holdout));
      GRACE_TRY(add_copies(std::move(layers), subject, holdout, measure, rows[i]));
    }
    return {};
  };
  GRACE_TRY(for_each_split("copies", subject, measure, on_split));
  const std::span<const Row> of_group = std::span(rows).first(counts.size());
  const Row* everything = with_everything ? &rows.back() : nullptr;
  return reproduced("copies", subject.name,
                    table_of(fmt::format("Copies of the heaviest group's hottest experts on every device, "
                                         "batches of {} and of {} tokens, {}",
                                         measure.batch, kDecodeBatch, subject.name),
                             "copied", rows, kCopiesColumns),
                    rows, copies_claims(of_group, everything), copies_notes(of_group, everything));
}

}  // namespace grace::app
