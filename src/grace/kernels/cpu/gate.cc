#include "grace/kernels/gate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "grace/base/check.h"
#include "grace/kernels/cpu/shares.h"

namespace grace::kernels {
namespace {

// Softmax over one row; probabilities: [E].
void softmax(std::span<const float> logits, std::span<float> probabilities) {
  const float largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (std::size_t e = 0; e < logits.size(); ++e) {
    probabilities[e] = std::exp(logits[e] - largest);
    sum += static_cast<double>(probabilities[e]);
  }
  for (float& p : probabilities) p = static_cast<float>(static_cast<double>(p) / sum);
}

void sigmoid(std::span<const float> logits, std::span<float> scores) {
  for (std::size_t e = 0; e < logits.size(); ++e) scores[e] = 1.0F / (1.0F + std::exp(-logits[e]));
}

// The largest of those not taken, or the size when all are. By plain search: K is small, ties go to the lower
// id, and a NaN cannot break an ordering.
std::size_t largest_left(std::span<const float> values, std::span<const char> taken) {
  std::size_t best = values.size();
  for (std::size_t i = 0; i < values.size(); ++i)
    if (taken[i] == 0 && (best == values.size() || values[i] > values[best])) best = i;
  return best;
}

// Working memory of one thread, kept.
struct Scratch {
  std::vector<float> scores, values;  // [E]
  std::vector<char> taken;
  std::vector<float> group_values;  // [groups]
  std::vector<char> group_taken;
};
Scratch& scratch() {
  static thread_local Scratch mine;
  return mine;
}

template <typename Value>
std::span<Value> sized(std::vector<Value>& values, int size) {
  values.resize(static_cast<std::size_t>(size));
  return values;
}

// One token after the other, in the memory of the thread that made it: one at a time.
class Gate {
 public:
  Gate(const GateRule& rule, std::span<const float> bias, std::span<const char> allowed)
      : rule_(rule),
        bias_(bias),
        allowed_(allowed),
        scores_(sized(scratch().scores, rule.experts)),
        values_(sized(scratch().values, rule.experts)),
        taken_(sized(scratch().taken, rule.experts)),
        group_values_(sized(scratch().group_values, rule.groups)),
        group_taken_(sized(scratch().group_taken, rule.groups)) {}

  // Weighs what was chosen.
  void weigh(std::span<const float> logits, std::span<const std::uint16_t> ids, std::span<float> weights) {
    score(logits);
    for (std::size_t k = 0; k < ids.size(); ++k) {
      GRACE_CHECK(ids[k] < scores_.size(), "an expert outside [0, E)");
      weights[k] = scores_[ids[k]];
    }
    normalise(weights);
  }

  void choose(std::span<const float> logits, std::span<std::uint16_t> ids, std::span<float> weights) {
    score(logits);
    for (std::size_t e = 0; e < scores_.size(); ++e)
      values_[e] = bias_.empty() ? scores_[e] : scores_[e] + bias_[e];
    std::ranges::fill(taken_, char{0});
    if (rule_.groups > 1) keep_groups();
    for (std::size_t k = 0; k < ids.size(); ++k) {
      const std::size_t best = largest_left(values_, taken_);
      GRACE_CHECK(best < taken_.size(), "fewer experts are allowed than a token chooses");
      taken_[best] = 1;
      for (std::size_t e = 0; k == 0 && !allowed_.empty() && e < taken_.size(); ++e)
        if (allowed_[best * taken_.size() + e] == 0) taken_[e] = 1;
      ids[k] = static_cast<std::uint16_t>(best);
      weights[k] = scores_[best];
    }
    normalise(weights);
  }

 private:
  void score(std::span<const float> logits) {
    if (rule_.scores == Scores::kSoftmax)
      softmax(logits, scores_);
    else
      sigmoid(logits, scores_);
  }

  // Takes all experts outside the best groups.
  void keep_groups() {
    const std::size_t size = values_.size() / group_values_.size();
    for (std::size_t g = 0; g < group_values_.size(); ++g) {
      const auto values = std::span<const float>(values_).subspan(g * size, size);
      const auto taken = taken_.subspan(g * size, size);
      group_values_[g] = 0;
      for (int i = 0; i < rule_.group_best; ++i) {
        const std::size_t best = largest_left(values, taken);
        group_values_[g] += values[best];
        taken[best] = 1;
      }
      std::ranges::fill(taken, char{1});
    }
    std::ranges::fill(group_taken_, char{0});
    for (int kept = 0; kept < rule_.groups_kept; ++kept) {
      const std::size_t best = largest_left(group_values_, group_taken_);
      group_taken_[best] = 1;
      std::ranges::fill(taken_.subspan(best * size, size), char{0});
    }
  }

  void normalise(std::span<float> weights) const {
    if (rule_.normalise) {
      float sum = 0;
      for (const float w : weights) sum += w;
      for (float& w : weights) w /= sum;
    }
    if (rule_.scale != 1)
      for (float& w : weights) w *= rule_.scale;
  }

  const GateRule& rule_;
  std::span<const float> bias_;
  std::span<const char> allowed_;
  std::span<float> scores_, values_;  // [E]
  std::span<char> taken_;
  std::span<float> group_values_;  // [groups]
  std::span<char> group_taken_;
};

void check_rule(const GateRule& rule, std::span<const float> bias, std::span<const char> allowed) {
  GRACE_CHECK(rule.top > 0 && rule.top <= rule.experts, "K is outside [1, E]");
  GRACE_CHECK(rule.groups > 0 && rule.experts % rule.groups == 0, "groups do not divide E");
  const int size = rule.experts / rule.groups;
  GRACE_CHECK(rule.groups_kept > 0 && rule.groups_kept <= rule.groups && rule.groups_kept * size >= rule.top,
              "the groups kept do not hold K experts");
  GRACE_CHECK(rule.groups == 1 || (rule.group_best > 0 && rule.group_best <= size),
              "a group is smaller than what it is judged by");
  const auto experts = static_cast<std::size_t>(rule.experts);
  GRACE_CHECK(bias.empty() || bias.size() == experts, "bias is not [E]");
  GRACE_CHECK(allowed.empty() || allowed.size() == experts * experts, "allowed is not [E, E]");
}

}  // namespace

void gate(std::span<const float> logits, const GateRule& rule, std::span<const float> bias,
          std::span<const char> allowed, std::span<std::uint16_t> ids, std::span<float> weights,
          ThreadPool& pool) {
  check_rule(rule, bias, allowed);
  const auto experts = static_cast<std::size_t>(rule.experts), top = static_cast<std::size_t>(rule.top);
  const std::size_t tokens = logits.size() / experts;
  GRACE_CHECK(logits.size() == tokens * experts, "logits are not [T, E]");
  GRACE_CHECK(ids.size() == tokens * top && weights.size() == tokens * top, "ids and weights are not [T, K]");
  for_each_share(tokens, experts * (1 + top), pool, [&](std::size_t first, std::size_t last) {
    Gate one(rule, bias, allowed);
    for (std::size_t t = first; t < last; ++t)
      one.choose(logits.subspan(t * experts, experts), ids.subspan(t * top, top),
                 weights.subspan(t * top, top));
  });
}

void weigh(std::span<const float> logits, const GateRule& rule, std::span<const std::uint16_t> ids,
           std::span<float> weights) {
  check_rule(rule, {}, {});
  const auto experts = static_cast<std::size_t>(rule.experts), top = static_cast<std::size_t>(rule.top);
  const std::size_t tokens = logits.size() / experts;
  GRACE_CHECK(
      logits.size() == tokens * experts && ids.size() == tokens * top && weights.size() == tokens * top,
      "logits are not [T, E], or ids and weights not [T, K]");
  Gate one(rule, {}, {});
  for (std::size_t t = 0; t < tokens; ++t)
    one.weigh(logits.subspan(t * experts, experts), ids.subspan(t * top, top), weights.subspan(t * top, top));
}

}  // namespace grace::kernels
