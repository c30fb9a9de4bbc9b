// The operations of a decoder layer on a tape, each with what the engine's may round.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "grace/kernels/kernels.h"
#include "grace/model/model.h"
#include "grace/runtime/rounding_tape.h"
#include "grace/runtime/tape_matrix.h"

namespace grace {

// References to a tape that lives longer.
struct TapeOperations {
  using Id = RoundingTape::Id;
  RoundingTape& tape;
  bool bf16;

  // Units of the last place that the engine's exp may be off by, as shares of the result: two whole ones.
  static constexpr double kExp = 4 * kUnitF32;

  TapeRange constants(std::span<const float> values) const {
    const std::size_t begin = tape.size();
    for (const float value : values) tape.put(static_cast<double>(value), {}, {});
    return tape.since(begin);
  }
  // As products take it, and the cache.
  TapeRange rounded(TapeRange x) const {
    if (!bf16) return x;
    const std::size_t begin = tape.size();
    for (std::size_t i = 0; i < x.count; ++i)
      tape.put(tape[x[i]], {{x[i], 1}}, rounding(kUnitBf16 * std::abs(tape[x[i]])));
    return tape.since(begin);
  }
  TapeRange product(TapeRange x, const TapeMatrix& weight) const {
    const std::size_t begin = tape.size();
    for (int row = 0; row < weight.rows(); ++row) tape.put_product(x, weight.row(row).data());
    return tape.since(begin);
  }
  TapeRange add(TapeRange a, TapeRange b) const {
    const std::size_t begin = tape.size();
    for (std::size_t i = 0; i < a.count; ++i) {
      const double sum = tape[a[i]] + tape[b[i]];
      tape.put(sum, {{a[i], 1}, {b[i], 1}}, rounding(kUnitF32 * std::abs(sum)));
    }
    return tape.since(begin);
  }
  TapeRange add(TapeRange a, std::span<const float> bias) const {
    if (bias.empty()) return a;
    const std::size_t begin = tape.size();
    for (std::size_t i = 0; i < a.count; ++i) {
      const double sum = tape[a[i]] + static_cast<double>(bias[i]);
      tape.put(sum, {{a[i], 1}}, rounding(kUnitF32 * std::abs(sum)));
    }
    return tape.since(begin);
  }
  TapeRange join(TapeRange a, TapeRange b) const {
    const std::size_t begin = tape.size();
    for (const TapeRange& part : {a, b})
      for (std::size_t i = 0; i < part.count; ++i) tape.put(tape[part[i]], {{part[i], 1}}, {});
    return tape.since(begin);
  }
  // Squares are summed in f64; the factor is rounded, and both products with it.
  TapeRange norm(TapeRange x, std::span<const float> scale, double eps) const {
    const auto n = static_cast<double>(x.count);
    double squares = 0;
    for (std::size_t i = 0; i < x.count; ++i) squares += tape[x[i]] * tape[x[i]];
    const double factor = 1 / std::sqrt(squares / n + eps);
    std::vector<RoundingTape::Edge> edges;
    for (std::size_t i = 0; i < x.count; ++i)
      edges.push_back({x[i], -factor * factor * factor * tape[x[i]] / n});
    const Id by = tape.put(factor, edges, rounding(kUnitF32 * factor));
    const std::size_t begin = tape.size();
    for (std::size_t i = 0; i < x.count; ++i) {
      const double s = static_cast<double>(scale[i]), value = tape[x[i]] * tape[by] * s;
      tape.put(value, {{x[i], tape[by] * s}, {by, tape[x[i]] * s}}, rounding(2 * kUnitF32 * std::abs(value)));
    }
    return tape.since(begin);
  }
  TapeRange clipped(TapeRange x, double bound) const {
    const std::size_t begin = tape.size();
    for (std::size_t i = 0; i < x.count; ++i) {
      // What is near the edge may be on its other side in a rounded run, where the slope is 1.
      const double slope = std::abs(tape[x[i]]) <= bound * (1 + (bf16 ? 0x1p-4 : 0x1p-16)) ? 1 : 0;
      tape.put(std::clamp(tape[x[i]], -bound, bound), {{x[i], slope}}, {});
    }
    return tape.since(begin);
  }
  // The last dimensions of one head, of token t.
  TapeRange turned(TapeRange x, const kernels::Rotations& turns, std::size_t t) const {
    const std::size_t pairs = turns.pairs, rest = x.count - 2 * pairs, begin = tape.size();
    for (std::size_t i = 0; i < rest; ++i) tape.put(tape[x[i]], {{x[i], 1}}, {});
    for (std::size_t d = 0; d < 2 * pairs; ++d) {
      const std::size_t pair = turns.interleaved ? d / 2 : d % pairs;
      const bool second = turns.interleaved ? d % 2 == 1 : d >= pairs;
      const std::size_t apart = turns.interleaved ? 1 : pairs;
      const Id own = x[rest + d], other = second ? x[rest + d - apart] : x[rest + d + apart];
      const double cosine = static_cast<double>(turns.cosine[t * pairs + pair]);
      const double sine = static_cast<double>(turns.sine[t * pairs + pair]) * (second ? 1 : -1);
      const double a = tape[own] * cosine, b = tape[other] * sine;
      tape.put(a + b, {{own, cosine}, {other, sine}}, rounding(gamma_of(2) * (std::abs(a) + std::abs(b))));
    }
    return tape.since(begin);
  }
  Id sum_of_products(std::span<const Id> a, std::span<const Id> b, double scale, std::size_t more) const {
    std::vector<RoundingTape::Edge> edges;
    double sum = 0, size = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double x = tape[a[i]], y = tape[b[i]];
      sum += x * y * scale;
      size += std::abs(x * y * scale);
      edges.push_back({a[i], y * scale});
      edges.push_back({b[i], x * scale});
    }
    return tape.put(sum, edges, rounding_of_sum(a.size() + more, size));
  }
  // e^(x - the largest), which is `largest` apart from what rounds it; steps: of the running maximum.
  Id exponential(Id x, double largest, double range, double exp_error, std::size_t steps) const {
    const double value = std::exp(tape[x] - largest);
    const double moved = static_cast<double>(steps) * (kUnitF32 * range + exp_error + kUnitF32);
    return tape.put(value, {{x, value}}, rounding(value * moved));
  }
  Id quotient(Id a, Id b) const {
    const double value = tape[a] / tape[b];
    return tape.put(value, {{a, 1 / tape[b]}, {b, -value / tape[b]}}, rounding(kUnitF32 * std::abs(value)));
  }
  Id sum(std::span<const Id> terms, std::size_t roundings) const {
    std::vector<RoundingTape::Edge> edges;
    double value = 0, size = 0;
    for (const Id term : terms) {
      value += tape[term];
      size += std::abs(tape[term]);
      edges.push_back({term, 1});
    }
    return tape.put(value, edges, rounding_of_sum(roundings, size));
  }
  std::vector<Id> exponentials(std::span<const Id> x, double exp_error, std::size_t steps) const {
    double largest = -HUGE_VAL, smallest = HUGE_VAL;
    for (const Id id : x) {
      largest = std::max(largest, tape[id]);
      smallest = std::min(smallest, tape[id]);
    }
    std::vector<Id> to;
    for (const Id id : x) to.push_back(exponential(id, largest, largest - smallest, exp_error, steps));
    return to;
  }
  // One query of one head; keys and values of the tokens that it sees.
  TapeRange attended(TapeRange q, std::span<const TapeRange> keys, std::span<const TapeRange> values,
                     double scale) const {
    std::vector<Id> scores, from(q.count), to(q.count);
    for (const TapeRange& key : keys) {
      for (std::size_t d = 0; d < q.count; ++d) {
        from[d] = q[d];
        to[d] = key[d];
      }
      scores.push_back(sum_of_products(from, to, scale, 2));  // the scale, and what it is rounded to
    }
    // A chunk of keys at a time: each may bring a larger maximum, to which what is there is scaled.
    const std::size_t chunks = keys.size() / kernels::kCacheBlock + 2;
    const std::vector<Id> weights = exponentials(scores, kExp, chunks);
    const Id total = sum(weights, weights.size() + chunks);
    std::vector<Id> sums, column(values.size());
    for (std::size_t d = 0; d < values[0].count; ++d) {
      for (std::size_t k = 0; k < values.size(); ++k) column[k] = values[k][d];
      sums.push_back(sum_of_products(weights, column, 1, chunks));
    }
    const std::size_t begin = tape.size();
    for (const Id id : sums) quotient(id, total);
    return tape.since(begin);
  }
  // x is rounded already.
  TapeRange ffn(TapeRange x, const TapeFfn& weights) const {
    const TapeRange gate = product(x, weights.gate), up = product(x, weights.up);
    const std::size_t begin = tape.size();
    for (std::size_t i = 0; i < gate.count; ++i) {
      const double g = tape[gate[i]], u = tape[up[i]], sigmoid = 1 / (1 + std::exp(-g));
      const double value = g * sigmoid * u;
      tape.put(value, {{gate[i], sigmoid * (1 + g * (1 - sigmoid)) * u}, {up[i], g * sigmoid}},
               rounding(std::abs(value) * (kExp + 3 * kUnitF32)));
    }
    return product(rounded(tape.since(begin)), weights.down);
  }
  // Of the experts chosen, from the router's logits.
  std::vector<Id> weights(TapeRange logits, const ModelConfig& config,
                          std::span<const std::int32_t> experts) const {
    std::vector<Id> scores;
    if (config.choice.scoring == Scoring::kSoftmax) {
      std::vector<Id> all;
      for (std::size_t e = 0; e < logits.count; ++e) all.push_back(logits[e]);
      const std::vector<Id> powers = exponentials(all, 2 * kUnitF32, 1);
      const Id total = sum(powers, 1);  // in f64
      for (const std::int32_t e : experts)
        scores.push_back(quotient(powers[static_cast<std::size_t>(e)], total));
    } else {
      for (const std::int32_t e : experts) {
        const Id logit = logits[static_cast<std::size_t>(e)];
        const double value = 1 / (1 + std::exp(-tape[logit]));
        scores.push_back(tape.put(value, {{logit, value * (1 - value)}}, rounding(4 * kUnitF32 * value)));
      }
    }
    const Id total = config.norm_topk_prob ? sum(scores, scores.size()) : 0;
    for (Id& score : scores) {
      if (config.norm_topk_prob) score = quotient(score, total);
      const double scale = static_cast<double>(static_cast<float>(config.choice.scale));
      if (scale != 1)
        score = tape.put(tape[score] * scale, {{score, scale}},
                         rounding(kUnitF32 * std::abs(tape[score] * scale)));
    }
    return scores;
  }
  TapeRange add_weighed(TapeRange h, std::span<const Id> weights, std::span<const TapeRange> said) const {
    std::vector<Id> sums, column(said.size());
    for (std::size_t i = 0; i < h.count; ++i) {
      for (std::size_t k = 0; k < said.size(); ++k) column[k] = said[k][i];
      sums.push_back(sum_of_products(weights, column, 1, 1));
    }
    const std::size_t begin = tape.size();
    for (std::size_t i = 0; i < h.count; ++i) {
      const double sum = tape[h[i]] + tape[sums[i]];
      tape.put(sum, {{h[i], 1}, {sums[i], 1}}, rounding(kUnitF32 * std::abs(sum)));
    }
    return tape.since(begin);
  }
  // y times the sigmoid of x's product, which is of f64.
  TapeRange switched(TapeRange x, const TapeMatrix& by, TapeRange y) const {
    std::vector<RoundingTape::Edge> edges;
    double sum = 0;
    for (std::size_t i = 0; i < x.count; ++i) sum += tape[x[i]] * static_cast<double>(by.row(0)[i]);
    const double value = 1 / (1 + std::exp(-sum));
    for (std::size_t i = 0; i < x.count; ++i)
      edges.push_back({x[i], static_cast<double>(by.row(0)[i]) * value * (1 - value)});
    const Id factor = tape.put(value, edges, rounding(kUnitF32 * value));
    const std::size_t begin = tape.size();
    for (std::size_t i = 0; i < y.count; ++i) {
      const double product = tape[y[i]] * tape[factor];
      tape.put(product, {{y[i], tape[factor]}, {factor, tape[y[i]]}}, rounding(kUnitF32 * std::abs(product)));
    }
    return tape.since(begin);
  }
};
}  // namespace grace
