// What the search of `joint` sees of one layer: tokens, each on a source device, and what its objective
// weighs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grace/base/rng.h"
#include "grace/cluster/cluster.h"
#include "grace/cost/objective.h"
#include "grace/trace/trace.h"

namespace grace::joint {

inline constexpr std::size_t kHalves = 8;

// Tokens of one layer, in random order, so that any prefix is a sample. Tokens without a choice are left out.
struct SearchTokens {
  int num_experts = 0;
  std::vector<std::uint16_t> experts;   // of token t: [begin[t], begin[t + 1])
  std::vector<std::uint32_t> begin{0};  // [T + 1]
  std::vector<std::uint16_t> source;    // [T] devices, as even as can be
  // [T] bit r: the token's sequence is in random half r of the sequences; halves r and r + kHalves / 2 are
  // complements. A placement that is even on every half is likely to be even on sequences that nobody has
  // seen.
  std::vector<std::uint8_t> halves;
  std::vector<std::int64_t> load;  // [E]
  std::int64_t assignments = 0;

  std::size_t size() const { return source.size(); }
  std::span<const std::uint16_t> of(std::size_t token) const {
    return {experts.data() + begin[token], experts.data() + begin[token + 1]};
  }
};

// At most max_tokens of the layer, spread evenly over the trace, so that every sequence gives its share.
SearchTokens sample_tokens(const Trace& trace, MoeOrdinal layer, int num_devices, std::size_t max_tokens,
                           Rng rng);

// The objective in one unit per token: node * x + device * y + load * (max/mean work). Work is assignments,
// or with layer time what they cost a device: work[n] of a copy with n assignments among the sample's tokens,
// in assignments.
struct Weights {
  double node = 0;
  double device = 0;
  double load = 0;
  std::vector<double> speed;  // [D], 1 for the yardsticks
  std::vector<double> work;   // [0 .. T]: work of a copy that gets n of the sample's assignments
};
Weights weights_of(const Objective& objective, const Cluster& cluster, const SearchTokens& tokens);

}  // namespace grace::joint
