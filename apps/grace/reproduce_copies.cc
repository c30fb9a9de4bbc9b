// The published replication, one knob turned at a time: what is copied, and how much.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

#include "grace/planner/budget.h"
#include "grace/replication/replication.h"
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

}  // namespace

Result<ReproducedTable> copy_what_table(const Subject& subject, const Measure& measure) {
  std::vector<Row> rows(kCopyings.size());
  const OnSplit on_split = [&](const Holdout& holdout) -> Status {
    const std::vector<TwoLevels> levels = levels_of(holdout, measure, NodeSizes::kFree);
    const std::vector<LayerPlan> bare = grouped(holdout, measure, levels, kPublishedR);
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
      const Plan plan = plan_of(subject, measure, std::move(layers), how.routing);
      rows[i].add(GRACE_TRY(judged_at(plan, subject, holdout, measure, measure.batch)), subject.sizes);
    }
    return {};
  };
  GRACE_TRY(for_each_split("copy-what", subject, measure, on_split));
  const std::vector<Claim> claims = {
      {"copying the most activated helps: max/mean against no copies, WRR", "less", -1,
       change_of(rows[1], rows[0], "load_max_over_mean")},
      {"copying the most collaborating does not: max/mean against the most activated, WRR", "more", 1,
       change_of(rows[2], rows[1], "load_max_over_mean")},
      {"the same, layer time, WRR", "more", 1, change_of(rows[2], rows[1], "layer_time")},
      {"the same, max/mean, TAR", "more", 1, change_of(rows[4], rows[3], "load_max_over_mean")},
      {"the same, layer time, TAR", "more", 1, change_of(rows[4], rows[3], "layer_time")},
  };
  return reproduced(
      "copy-what", subject.name,
      table_of(fmt::format("What to copy, HG with r 0.15 and as many copies as DR makes, {}", subject.name),
               "copied", rows, kCopyWhatColumns),
      rows, claims, {});
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
  for (int count = 1; count < 2 * num_experts / std::max(1, num_devices); count *= 2) counts.push_back(count);
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
      GRACE_TRY(add_copies(std::move(layers), subject, holdout, measure, rows[i]));
    }
    return {};
  };
  GRACE_TRY(for_each_split("copies", subject, measure, on_split));
  std::vector<Claim> claims;
  const auto best_by = [&](const char* figure) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < rows.size(); ++i)
      if (rows[i].mean(figure) < rows[best].mean(figure)) best = i;
    return best;
  };
  for (const char* figure : {"layer_time", "decode_layer_time"}) {
    const std::size_t best = best_by(figure);
    const char* where = std::string_view(figure) == "layer_time" ? "" : "at the decode batch, ";
    claims.push_back({fmt::format("too many copies harm: {}the last row's layer time against the best ({})",
                                  where, rows[best].name),
                      "more", 1, change_of(rows.back(), rows[best], figure)});
    claims.push_back({fmt::format("the same, max/mean"), "-", 0,
                      change_of(rows.back(), rows[best],
                                *where == 0 ? "load_max_over_mean" : "decode_load_max_over_mean")});
  }
  return reproduced("copies", subject.name,
                    table_of(fmt::format("Copies of the heaviest group's hottest experts on every device, "
                                         "batches of {} and of {} tokens, {}",
                                         measure.batch, kDecodeBatch, subject.name),
                             "copied", rows, kCopiesColumns),
                    rows, claims, {});
}

}  // namespace grace::app
