// Which experts a token goes to, and with what weights.
#pragma once

#include <cstdint>
#include <span>

#include "grace/base/thread_pool.h"

namespace grace::kernels {

enum class Scores : std::uint8_t { kSoftmax, kSigmoid };

struct GateRule {
  int experts = 0;  // E
  int top = 0;      // K
  Scores scores = Scores::kSoftmax;
  // The experts are `groups` runs of E / groups. A group is as good as the sum of its `group_best` best
  // experts; a token chooses inside its groups_kept best groups.
  int groups = 1, groups_kept = 1, group_best = 1;
  bool normalise = false;  // the chosen weights to sum 1, before they are scaled
  float scale = 1;         // of the weights
};

// The K experts with the largest score + bias, largest first (ties, also of groups, to the lower id), weighed
// by their scores in f32. logits: [T, E] -> ids [T, K], weights [T, K]. bias: [E], or empty for none.
// allowed: [E, E], or empty and all are: besides its best expert e a token may choose only those whose
// allowed in row e is not 0; weights are still of the softmax over all. REQUIRES: groups divides E;
// groups_kept of them hold K experts and group_best; K - 1 are allowed in each row, of the groups kept.
void gate(std::span<const float> logits, const GateRule& rule, std::span<const float> bias,
          std::span<const char> allowed, std::span<std::uint16_t> ids, std::span<float> weights,
          ThreadPool& pool);

// The weights alone, of experts that were chosen otherwise. ids: [T, K].
void weigh(std::span<const float> logits, const GateRule& rule, std::span<const std::uint16_t> ids,
           std::span<float> weights);

namespace reference {
// Without `allowed`.
void gate(std::span<const float> logits, const GateRule& rule, std::span<const float> bias,
          std::span<std::uint16_t> ids, std::span<float> weights);
}  // namespace reference

}  // namespace grace::kernels
