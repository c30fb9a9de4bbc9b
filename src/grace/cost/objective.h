// What a plan is judged by: three weights on what a batch does, or seconds on a cluster.
#pragma once

#include <cstdint>
#include <string_view>

#include "grace/base/result.h"

namespace grace {

// The sizes that turn counts into bytes and seconds. Zero where they are not known.
struct LayerSizes {
  int hidden = 0;               // H
  int expert_ffn = 0;           // F; an expert is three matrices of [H, F]
  double bytes_per_value = 2;   // of what travels, and of what an activation is
  double bytes_per_weight = 2;  // of the experts' weights

  bool known() const { return hidden > 0 && expert_ffn > 0; }
  double vector_bytes() const { return hidden * bytes_per_value; }
  double expert_parameters() const { return 3.0 * hidden * expert_ffn; }
  double expert_bytes() const { return expert_parameters() * bytes_per_weight; }
  double flops_per_assignment() const { return 2 * expert_parameters(); }
};

// Per token, in units of one token's mean compute share: node * x + device * y + load * (max/mean load), x
// the nodes entered beyond a token's own and y its forwards inside nodes, both means per token. Two fixed
// ones, so that figures can be compared whoever computes them.
struct Yardstick {
  double node = 0;
  double device = 0;
  double load = 0;
};
inline constexpr Yardstick kSlowYardstick{16, 0.5, 6};
inline constexpr Yardstick kFastYardstick{4, 1, 2.4};

enum class Aim { kLayerTime, kJudgeSlow, kJudgeFast };
Result<Aim> parse_aim(
    std::string_view name);  // "layer-time", "judge-slow", "judge-fast"; errors: invalid_input naming them
std::string_view name_of(Aim aim);

struct Objective {
  Aim aim = Aim::kJudgeSlow;
  LayerSizes sizes;           // REQUIRES: known() where the aim is layer time
  std::int64_t batch = 2048;  // tokens of all devices together in one pass of a layer
};

}  // namespace grace
