// Traces for tests: one small enough to read, and random ones.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "grace/base/rng.h"
#include "grace/trace/trace.h"

namespace grace {

// Three tokens in two sequences, two layers, 2 of 4 experts; one choice is not routed.
inline Trace small_trace() {
  Trace trace;
  trace.model = "toy";
  trace.source = "by hand";
  trace.num_experts = 4;
  trace.experts_per_token = 2;
  trace.decoder_layers = {1, 2};
  trace.topk_ids = {0, 1, 2, 3, 0, 3, 1, kNotRouted, 3, 2, 1, 0};
  trace.sequence_offsets = {0, 1, 3};
  return trace;
}

// A sound trace of at least one sequence and one token, of any width, with and without the optional parts;
// weights are exact in f16.
inline Trace random_trace(Rng& rng) {
  Trace trace;
  trace.model = "m\"o\\d\xc3\xa9l";
  trace.source = "random\nlines";
  const int sizes[] = {2, 7, 60, 254, 255, 256, 300, 65534};
  trace.num_experts = sizes[rng.below(8)];
  trace.experts_per_token =
      1 + static_cast<int>(rng.below(static_cast<std::uint64_t>(std::min(trace.num_experts, 6))));
  for (int i = 0, layer = 0, count = 1 + static_cast<int>(rng.below(3)); i < count; ++i)
    trace.decoder_layers.push_back(layer += 1 + static_cast<int>(rng.below(2)));
  trace.phase = rng.below(2) == 0 ? Phase::kPrefill : Phase::kMixed;
  trace.sequence_offsets = {0};
  for (std::uint64_t s = 0, count = 1 + rng.below(5); s < count; ++s) {
    const std::int64_t length =
        (s == 0 ? 1 : 0) + static_cast<std::int64_t>(rng.below(5));  // empty sequences occur
    trace.sequence_offsets.push_back(trace.sequence_offsets.back() + length);
    if (trace.phase == Phase::kMixed)
      trace.prompt_lengths.push_back(
          static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(length) + 1)));
  }
  const bool has_weights = rng.below(2) == 0;
  const bool has_token_ids = rng.below(2) == 0;
  for (std::int64_t token = 0; token < trace.num_tokens(); ++token) {
    if (has_token_ids) trace.token_ids.push_back(static_cast<std::int32_t>(rng.below(1ULL << 31)));
    for (int layer = 0; layer < trace.num_moe_layers(); ++layer) {
      std::vector<std::uint16_t> row;
      while (static_cast<int>(row.size()) < trace.experts_per_token) {
        const auto expert =
            static_cast<std::uint16_t>(rng.below(static_cast<std::uint64_t>(trace.num_experts)));
        if (std::ranges::find(row, expert) == row.end()) row.push_back(expert);
      }
      if (rng.below(5) == 0) row.back() = kNotRouted;
      trace.topk_ids.insert(trace.topk_ids.end(), row.begin(), row.end());
      if (!has_weights) continue;
      for (std::size_t k = 0; k < row.size(); ++k)
        trace.topk_weights.push_back(static_cast<float>(rng.below(2048)) / 2048);
    }
  }
  return trace;
}

}  // namespace grace
