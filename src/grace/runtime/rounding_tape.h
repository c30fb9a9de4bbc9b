// What a test's rounded run can differ by from the exact one: values in f64, how each follows from earlier
// ones, and the rounding that a run may add there. First order; docs/decisions/027-bounds-at-the-logits.md.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "grace/base/check.h"

namespace grace {

inline constexpr double kUnitF32 = 0x1p-24, kUnitBf16 = 0x1p-8;

// Of n roundings in a row (Higham, Accuracy and Stability of Numerical Algorithms, 3.1).
inline double gamma_of(std::size_t n) {
  const double nu = static_cast<double>(n) * kUnitF32;
  return nu / (1 - nu);
}

// One rounding's share of a value, and what it can move: surely, and as the root of squares.
struct Rounding {
  double most = 0, likely = 0;
};
inline Rounding rounding(double most) { return {most, most}; }
// Of a sum of n terms whose sizes add up to `size`, in any order: n roundings of at most u * size each.
inline Rounding rounding_of_sum(std::size_t n, double size) {
  return {gamma_of(n) * size, std::sqrt(static_cast<double>(n)) * kUnitF32 * size};
}

// Values with consecutive ids.
struct TapeRange {
  std::uint32_t first = 0, count = 0;
  std::uint32_t operator[](std::size_t i) const { return first + static_cast<std::uint32_t>(i); }
  TapeRange part(std::size_t begin, std::size_t size) const {
    return {first + static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(size)};
  }
};

// What the roundings of a run can move one value by.
struct TapeBound {
  double most = 0;    // all at their largest, with the signs that hurt: the sum of |derivative| * rounding
  double likely = 0;  // the root of the sum of squares
};

// Thread-compatible. Values are put in the order they are calculated in.
class RoundingTape {
 public:
  using Id = std::uint32_t;
  struct Edge {
    Id from;
    double slope;
  };

  RoundingTape() = default;
  // Adds errors[id] to each value, as a run whose roundings came out so. `errors` outlives the tape.
  explicit RoundingTape(const std::vector<double>& errors) : errors_(&errors) {}

  double operator[](Id id) const { return nodes_[id].value; }
  std::size_t size() const { return nodes_.size(); }

  Id put(double value, std::span<const Edge> edges, Rounding of) {
    const auto first = static_cast<std::uint32_t>(edges_.size());
    edges_.insert(edges_.end(), edges.begin(), edges.end());
    return push({value, of, nullptr, first, static_cast<std::uint32_t>(edges.size())});
  }
  Id put(double value, std::initializer_list<Edge> edges, Rounding of) {
    return put(value, std::span(edges.begin(), edges.size()), of);
  }
  // The sum of weights[i] * x[i], which lives as long as the tape.
  Id put_product(TapeRange x, const float* weights) {
    double sum = 0, size = 0;
    for (std::size_t i = 0; i < x.count; ++i) {
      const double term = static_cast<double>(weights[i]) * nodes_[x[i]].value;
      sum += term;
      size += std::abs(term);
    }
    return push({sum, rounding_of_sum(x.count, size), weights, x.first, x.count});
  }
  // [begin, size()): what was put since size() was `begin`.
  TapeRange since(std::size_t begin) const {
    return {static_cast<Id>(begin), static_cast<Id>(nodes_.size() - begin)};
  }

  // d value / d each earlier one, by one pass backwards (Linnainmaa, 1976).
  std::vector<double> slopes(Id of) const {
    std::vector<double> slopes(std::size_t{of} + 1, 0);
    slopes[of] = 1;
    for (std::size_t i = std::size_t{of} + 1; i-- > 0;) {
      const double slope = slopes[i];
      if (slope == 0) continue;
      const Node& node = nodes_[i];
      if (node.weights != nullptr) {
        for (std::size_t k = 0; k < node.count; ++k)
          slopes[node.first + k] += slope * static_cast<double>(node.weights[k]);
      } else {
        for (const Edge& edge : std::span(edges_).subspan(node.first, node.count))
          slopes[edge.from] += slope * edge.slope;
      }
    }
    return slopes;
  }
  TapeBound bound(Id of) const {
    const std::vector<double> slope = slopes(of);
    TapeBound bound;
    for (std::size_t i = 0; i < slope.size(); ++i) {
      bound.most += std::abs(slope[i]) * nodes_[i].of.most;
      bound.likely += slope[i] * slope[i] * nodes_[i].of.likely * nodes_[i].of.likely;
    }
    bound.likely = std::sqrt(bound.likely);
    return bound;
  }
  // The roundings that move the value farthest: `sign` is 1 or -1.
  std::vector<double> worst_errors(Id of, double sign) const {
    std::vector<double> errors = slopes(of);
    for (std::size_t i = 0; i < errors.size(); ++i)
      errors[i] = sign * (errors[i] < 0 ? -nodes_[i].of.most : nodes_[i].of.most);
    errors.resize(nodes_.size(), 0);
    return errors;
  }
  // How far each value can be off when every operation is taken for itself: running error analysis (Higham,
  // 3.3), which adds up sizes where the slopes above cancel.
  std::vector<double> running_bounds() const {
    std::vector<double> bounds(nodes_.size());
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const Node& node = nodes_[i];
      double sum = node.of.most;
      if (node.weights != nullptr) {
        for (std::size_t k = 0; k < node.count; ++k)
          sum += std::abs(static_cast<double>(node.weights[k])) * bounds[node.first + k];
      } else {
        for (const Edge& edge : std::span(edges_).subspan(node.first, node.count))
          sum += std::abs(edge.slope) * bounds[edge.from];
      }
      bounds[i] = sum;
    }
    return bounds;
  }

 private:
  struct Node {
    double value;
    Rounding of;
    const float* weights;        // of the values from `first` on, or null
    std::uint32_t first, count;  // else of the edges
  };
  Id push(Node node) {
    if (errors_ != nullptr) node.value += (*errors_)[nodes_.size()];
    nodes_.push_back(node);
    return static_cast<Id>(nodes_.size() - 1);
  }

  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  const std::vector<double>* errors_ = nullptr;
};

}  // namespace grace
