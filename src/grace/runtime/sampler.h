// The next token out of logits: the likeliest, or a seeded draw.
#pragma once

#include <cstdint>
#include <span>

#include "grace/base/rng.h"

namespace grace {

// Draws for one sequence. Same seed, sequence and logits, same tokens. Thread-compatible.
class Sampler {
 public:
  // REQUIRES: temperature >= 0 (0: the likeliest, ties to the lower id), top_p in (0, 1].
  Sampler(double temperature, double top_p, std::uint64_t seed, std::uint64_t sequence)
      : temperature_(temperature), top_p_(top_p), rng_(Rng(seed).fork(sequence)) {}
  // logits: [V].
  std::int32_t choose(std::span<const float> logits);

 private:
  double temperature_;
  double top_p_;
  Rng rng_;
};

}  // namespace grace
