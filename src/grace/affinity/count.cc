// Counting pairs directly: K(K-1)/2 additions a token, one layer a thread, upper and lower halves joined at
// the end.
#include <cstddef>

#include "grace/affinity/affinity.h"
#include "grace/base/check.h"

namespace grace {
namespace {

LayerStats count_layer(const Trace& trace, std::size_t layer) {
  const auto num_experts = static_cast<std::size_t>(trace.num_experts);
  const auto top_k = static_cast<std::size_t>(trace.experts_per_token);
  const std::size_t stride = trace.decoder_layers.size() * top_k;
  const auto num_tokens = static_cast<std::size_t>(trace.num_tokens());

  LayerStats stats;
  stats.num_experts = trace.num_experts;
  stats.affinity.assign(num_experts * num_experts, 0);
  stats.load.assign(num_experts, 0);
  std::vector<std::size_t> chosen;
  chosen.reserve(top_k);
  for (std::size_t t = 0; t < num_tokens; ++t) {
    const std::uint16_t* choice = trace.topk_ids.data() + t * stride + layer * top_k;
    chosen.clear();
    for (std::size_t k = 0; k < top_k; ++k) {
      if (choice[k] == kNotRouted) continue;
      GRACE_CHECK(choice[k] < num_experts, "an expert of the trace is outside [0, E)");
      chosen.push_back(choice[k]);
    }
    for (std::size_t a = 0; a < chosen.size(); ++a) {
      ++stats.load[chosen[a]];
      std::int64_t* row = stats.affinity.data() + chosen[a] * num_experts;
      for (std::size_t b = a + 1; b < chosen.size(); ++b) ++row[chosen[b]];
    }
  }
  // A pair was counted once, in the order in which its token listed it.
  for (std::size_t i = 0; i < num_experts; ++i) {
    stats.affinity[i * num_experts + i] = 0;
    for (std::size_t j = i + 1; j < num_experts; ++j) {
      std::int64_t& upper = stats.affinity[i * num_experts + j];
      std::int64_t& lower = stats.affinity[j * num_experts + i];
      upper = lower = upper + lower;
    }
  }
  return stats;
}

}  // namespace

std::vector<LayerStats> count_layers(const Trace& trace, ThreadPool& pool) {
  GRACE_CHECK(trace.topk_ids.size() == static_cast<std::size_t>(trace.num_tokens()) *
                                           trace.decoder_layers.size() *
                                           static_cast<std::size_t>(trace.experts_per_token),
              "topk_ids is not [T, M, K]");
  std::vector<LayerStats> layers(trace.decoder_layers.size());
  pool.for_each(layers.size(), [&](std::size_t layer, int) { layers[layer] = count_layer(trace, layer); });
  return layers;
}

double affinity_kept(const LayerStats& stats, std::span<const int> group_of_expert) {
  const auto num_experts = static_cast<std::size_t>(stats.num_experts);
  GRACE_CHECK(group_of_expert.size() == num_experts, "one group for each expert");
  GRACE_CHECK(stats.affinity.size() == num_experts * num_experts, "affinity is known");
  std::int64_t kept = 0;
  std::int64_t all = 0;
  for (std::size_t i = 0; i < num_experts; ++i) {
    for (std::size_t j = i + 1; j < num_experts; ++j) {
      const std::int64_t pair = stats.affinity[i * num_experts + j];
      all += pair;
      if (group_of_expert[i] == group_of_expert[j]) kept += pair;
    }
  }
  return all == 0 ? 1 : static_cast<double>(kept) / static_cast<double>(all);
}

}  // namespace grace
