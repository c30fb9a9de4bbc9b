#include "reproduce_claims.h"

#include <fmt/format.h>

namespace grace::app {
namespace {

const Row& best_of(std::span<const Row> rows, const char* figure) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < rows.size(); ++i)
    if (rows[i].mean(figure) < rows[best].mean(figure)) best = i;
  return rows[best];
}

double percent(const Row& row, const Row& base, const char* figure) {
  return 100 * mean_of(change_of(row, base, figure));
}

double micros(const Row& row, const char* figure) { return 1e6 * row.mean(figure); }

}  // namespace

std::vector<Claim> size_bound_claims(std::span<const Row> rows) {
  const Row& equal = rows[0];
  const Row& tight = rows[1];
  const Row& loose = rows.back();
  return {
      {"the looser the bound, the less traffic: free against nodes equal, across nodes", "less", -1,
       change_of(loose, equal, "bytes_cross_node")},
      {"the same, inside nodes", "less", -1, change_of(loose, equal, "bytes_intra_node")},
      {"free against r = 0, across nodes", "less", -1, change_of(loose, tight, "bytes_cross_node")},
      {"the same, inside nodes", "less", -1, change_of(loose, tight, "bytes_intra_node")},
      {"the looser the bound, the worse the balance: free against r = 0, max/mean", "more", 1,
       change_of(loose, tight, "load_max_over_mean")},
      {"what that makes of a layer's time: free against r = 0", "-", 0,
       change_of(loose, tight, "layer_time")},
  };
}

std::vector<std::string> size_bound_notes(std::span<const Row> rows) {
  const Row& tight = rows[1];
  const Row& loose = rows.back();
  std::vector<std::string> notes;
  const double across = tight.mean("bytes_cross_node");
  if (across > 0 && loose.mean("bytes_cross_node") == across)
    notes.push_back(fmt::format(
        "r bounds the devices' groups inside a node; how many experts a node gets is free at every "
        "r, so that nothing across nodes moves with r. What free nodes bring is the step from the "
        "first row to the second: {:+.1f} % across nodes, {:+.1f} % inside, for {:+.1f} % of "
        "max/mean.",
        percent(tight, rows[0], "bytes_cross_node"), percent(tight, rows[0], "bytes_intra_node"),
        percent(tight, rows[0], "load_max_over_mean")));
  notes.push_back(fmt::format(
      "The layer is fastest at \"{}\": from r = 0 to free the exchange changes by {:+.0f} us and the slowest "
      "device's compute by {:+.0f} us. The knee weighs affinity against sizes and sees neither.",
      best_of(rows, "layer_time").name, micros(loose, "all_to_all") - micros(tight, "all_to_all"),
      micros(loose, "compute") - micros(tight, "compute")));
  return notes;
}

std::vector<Claim> copy_what_claims(std::span<const Row> rows) {
  const auto against = [&](std::size_t row, std::size_t base, const char* figure) {
    return change_of(rows[row], rows[base], figure);
  };
  return {
      {"copying the most activated helps: against none, max/mean, WRR", "less", -1,
       against(1, 0, "load_max_over_mean")},
      {"copying the most collaborating does not: against none, max/mean, WRR", "not less", 1,
       against(2, 0, "load_max_over_mean")},
      {"the most collaborating against the most activated: max/mean, WRR", "more", 1,
       against(2, 1, "load_max_over_mean")},
      {"the same, layer time, WRR", "more", 1, against(2, 1, "layer_time")},
      {"the same, max/mean, TAR", "more", 1, against(4, 3, "load_max_over_mean")},
      {"the same, layer time, TAR", "more", 1, against(4, 3, "layer_time")},
  };
}

std::vector<std::string> copy_what_notes(std::span<const Row> rows, std::span<const Claim> claims) {
  if (!claims[1].is_opposite()) return {};
  return {
      fmt::format("Copying the most collaborating helps here as well, for it copies nearly what the other "
                  "rule does: {:.0f} "
                  "% of its experts are among those the other copies, {:.0f} % would be by chance. Affinity "
                  "counts tokens, "
                  "so that an expert which many tokens choose has much of it.",
                  100 * rows[2].mean("same_experts"), 100 * rows[2].mean("by_chance"))};
}

std::vector<Claim> copies_claims(std::span<const Row> of_group, const Row* everything) {
  std::vector<Claim> claims;
  const auto add = [&](const Row& row, const char* figure, const char* words) {
    const Row& best = best_of(of_group, figure);
    claims.push_back(
        {fmt::format("too many copies harm: {}, {} against the best ({})", words, row.name, best.name),
         "more", 1, change_of(row, best, figure)});
  };
  add(of_group.back(), "load_max_over_mean", "max/mean");
  add(of_group.back(), "layer_time", "layer time");
  add(of_group.back(), "decode_layer_time", "decode layer time");
  if (everything == nullptr) return claims;
  add(*everything, "layer_time", "layer time");
  add(*everything, "decode_layer_time", "decode layer time");
  return claims;
}

std::vector<std::string> copies_notes(std::span<const Row> of_group, const Row* everything) {
  const Row& whole = of_group.back();
  const Row& bare = of_group.front();
  std::vector<std::string> notes;
  if (whole.mean("load_max_over_mean") > best_of(of_group, "load_max_over_mean").mean("load_max_over_mean"))
    notes.push_back(fmt::format(
        "Balance turns round because the copies overshoot: with all of it everywhere, the heaviest "
        "group is served where its tokens are, and the second heaviest device computes its own "
        "group and its part of the first: {:.3f} of the mean by that sum, {:.3f} measured.",
        whole.mean("overshoot"), whole.mean("load_max_over_mean")));
  notes.push_back(fmt::format(
      "An expert's weights are read wherever a token uses a copy: from none of the group to all of it, "
      "compute "
      "goes from {:.0f} to {:.0f} us and the exchange from {:.0f} to {:.0f} us; at the decode batch, from "
      "{:.1f} "
      "to {:.1f} us and from {:.1f} to {:.1f} us.",
      micros(bare, "compute"), micros(whole, "compute"), micros(bare, "all_to_all"),
      micros(whole, "all_to_all"), micros(bare, "decode_compute"), micros(whole, "decode_compute"),
      micros(bare, "decode_all_to_all"), micros(whole, "decode_all_to_all")));
  const Row& best = best_of(of_group, "layer_time");
  if (everything != nullptr && everything->mean("layer_time") < best.mean("layer_time"))
    notes.push_back(fmt::format(
        "Every expert everywhere is the fastest at the large batch: it saves the exchange, {:.0f} us, and "
        "adds "
        "{:.0f} us of compute. Its price is memory, {:.1f} experts a device in place of {:.1f}, and the "
        "decode "
        "batch, too small to be worth reading every expert for: {:.2f} times the best of the group's.",
        micros(best, "all_to_all"), micros(*everything, "compute") - micros(best, "compute"),
        everything->mean("slots_per_device_max"), best.mean("slots_per_device_max"),
        everything->mean("decode_layer_time") /
            best_of(of_group, "decode_layer_time").mean("decode_layer_time")));
  return notes;
}

}  // namespace grace::app
