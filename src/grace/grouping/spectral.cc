// Spectral clustering by a dense eigensolver: E <= 512, where that takes milliseconds and needs no start
// vector or tolerance.
#include <Eigen/Dense>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "grace/base/check.h"
#include "grace/grouping/grouping.h"

namespace grace {
namespace {

using Matrix = Eigen::MatrixXd;
// Points are read a row at a time, which is several times as fast where a row is contiguous.
using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Eigen::Index;

// Two distances closer than this are a tie: eigenvectors carry rounding of about 1e-14, and ties must not
// hang on it.
constexpr double kTie = 1e-9;
// First seeds that are tried. Where one start ends in a poor optimum another does not: on routing of real
// models sixty-four keep 2 to 30 % more affinity than one, and more than that hardly change a group.
constexpr std::size_t kMaxStarts = 64;
// Lloyd's steps; real layers settle in fewer than 20.
constexpr int kMaxSteps = 100;

Grouping contiguous_blocks(std::size_t n, std::size_t k) {
  Grouping groups;
  for (std::size_t g = 0; g < k; ++g)
    groups.insert(groups.end(), n / k + (g < n % k ? 1 : 0), static_cast<int>(g));
  return groups;
}

// [n] affinity sum of each expert inside `experts`.
std::vector<std::int64_t> degrees_of(const LayerStats& stats, std::span<const ExpertId> experts) {
  std::vector<std::int64_t> degrees(experts.size(), 0);
  for (std::size_t i = 0; i < experts.size(); ++i)
    for (const ExpertId other : experts) degrees[i] += stats.between(experts[i], other);
  return degrees;
}

// [n, k] rows of the k smallest eigenvectors of I - D^-1/2 A D^-1/2, each row of length 1. An expert that
// never fires with another stays at the origin.
Rows embed(const LayerStats& stats, std::span<const ExpertId> experts,
           const std::vector<std::int64_t>& degrees, int k) {
  const auto n = static_cast<Index>(experts.size());
  Eigen::VectorXd scale(n);
  for (Index i = 0; i < n; ++i) {
    const std::int64_t degree = degrees[static_cast<std::size_t>(i)];
    scale(i) = degree > 0 ? 1 / std::sqrt(static_cast<double>(degree)) : 0;
  }
  Matrix laplacian = Matrix::Identity(n, n);
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < n; ++j) {
      const std::int64_t pair =
          stats.between(experts[static_cast<std::size_t>(i)], experts[static_cast<std::size_t>(j)]);
      laplacian(i, j) -= static_cast<double>(pair) * scale(i) * scale(j);
    }
  }
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(laplacian);
  GRACE_CHECK(solver.info() == Eigen::Success, "the eigensolver did not converge");
  Rows rows = solver.eigenvectors().leftCols(k);
  for (Index c = 0; c < rows.cols(); ++c) {
    Index largest = 0;
    for (Index i = 1; i < n; ++i)
      if (std::abs(rows(i, c)) > std::abs(rows(largest, c)) + kTie) largest = i;
    if (rows(largest, c) < 0) rows.col(c) = -rows.col(c);
  }
  for (Index i = 0; i < n; ++i) {
    const double length = rows.row(i).norm();
    if (length > kTie)
      rows.row(i) /= length;
    else
      rows.row(i).setZero();
  }
  return rows;
}

// The first seed is given, each next one is the point farthest from all seeds so far.
Rows seed_centres(const Rows& points, Index next, int k) {
  Rows centres(k, points.cols());
  Eigen::VectorXd nearest = Eigen::VectorXd::Constant(points.rows(), std::numeric_limits<double>::infinity());
  for (Index c = 0; c < k; ++c) {
    centres.row(c) = points.row(next);
    nearest(next) = -1;  // not twice, even where points coincide
    for (Index i = 0; i < points.rows(); ++i)
      nearest(i) = std::min(nearest(i), (points.row(i) - centres.row(c)).squaredNorm());
    next = 0;
    for (Index i = 1; i < points.rows(); ++i)
      if (nearest(i) > nearest(next) + kTie) next = i;
  }
  return centres;
}

Grouping nearest_centres(const Rows& points, const Rows& centres) {
  Grouping groups;
  for (Index i = 0; i < points.rows(); ++i) {
    Index best = 0;
    double best_distance = (points.row(i) - centres.row(0)).squaredNorm();
    for (Index c = 1; c < centres.rows(); ++c) {
      const double distance = (points.row(i) - centres.row(c)).squaredNorm();
      if (distance < best_distance - kTie) {
        best = c;
        best_distance = distance;
      }
    }
    groups.push_back(static_cast<int>(best));
  }
  return groups;
}

// Gives each empty cluster the point that lies farthest from its own centre, among clusters that can spare
// one.
void fill_empty(const Rows& points, const Rows& centres, Grouping& groups) {
  std::vector<int> sizes(static_cast<std::size_t>(centres.rows()), 0);
  for (const int g : groups) ++sizes[static_cast<std::size_t>(g)];
  for (std::size_t empty = 0; empty < sizes.size(); ++empty) {
    if (sizes[empty] > 0) continue;
    std::size_t farthest = groups.size();
    double longest = -1;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (sizes[static_cast<std::size_t>(groups[i])] < 2) continue;
      const double distance = (points.row(static_cast<Index>(i)) - centres.row(groups[i])).squaredNorm();
      if (farthest == groups.size() || distance > longest + kTie) {
        farthest = i;
        longest = distance;
      }
    }
    --sizes[static_cast<std::size_t>(groups[farthest])];
    ++sizes[empty];
    groups[farthest] = static_cast<int>(empty);
  }
}

Grouping k_means(const Rows& points, Rows centres) {
  Grouping groups;
  for (int step = 0; step < kMaxSteps; ++step) {
    Grouping next = nearest_centres(points, centres);
    fill_empty(points, centres, next);
    if (next == groups) break;
    groups = std::move(next);
    Rows sums = Rows::Zero(centres.rows(), centres.cols());
    Eigen::VectorXd sizes = Eigen::VectorXd::Zero(centres.rows());
    for (Index i = 0; i < points.rows(); ++i) {
      const int g = groups[static_cast<std::size_t>(i)];
      sums.row(g) += points.row(i);
      sizes(g) += 1;
    }
    for (Index c = 0; c < centres.rows(); ++c) centres.row(c) = sums.row(c) / sizes(c);
  }
  return groups;
}

// The affinity that groups keep, over what random groups of the same sizes would be expected to keep.
double kept_over_random(const LayerStats& stats, std::span<const ExpertId> experts, const Grouping& groups,
                        int k) {
  std::int64_t kept = 0;
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(k), 0);
  for (std::size_t i = 0; i < experts.size(); ++i) {
    ++sizes[static_cast<std::size_t>(groups[i])];
    for (std::size_t j = 0; j < i; ++j)
      if (groups[i] == groups[j]) kept += stats.between(experts[i], experts[j]);
  }
  std::int64_t pairs = 0;
  for (const std::int64_t size : sizes) pairs += size * (size - 1) / 2;
  return pairs > 0 ? static_cast<double>(kept) / static_cast<double>(pairs) : 0;
}

// The experts by descending degree, ties to the lower id: the order in which they are tried as first seeds.
std::vector<Index> by_degree(const std::vector<std::int64_t>& degrees) {
  std::vector<Index> order(degrees.size());
  std::iota(order.begin(), order.end(), Index{0});
  std::ranges::stable_sort(order, [&](Index a, Index b) {
    return degrees[static_cast<std::size_t>(a)] > degrees[static_cast<std::size_t>(b)];
  });
  return order;
}

}  // namespace

Grouping spectral_groups(const LayerStats& stats, std::span<const ExpertId> experts, int k) {
  GRACE_CHECK(k >= 1, "at least one group");
  const std::size_t n = experts.size();
  if (n <= static_cast<std::size_t>(k)) return contiguous_blocks(n, static_cast<std::size_t>(k));
  if (k == 1) return Grouping(n, 0);
  const std::vector<std::int64_t> degrees = degrees_of(stats, experts);
  bool any = false;
  for (const std::int64_t degree : degrees) any = any || degree > 0;
  if (!any) return contiguous_blocks(n, static_cast<std::size_t>(k));
  const Rows points = embed(stats, experts, degrees, k);
  Grouping best;
  double most = -1;
  const std::vector<Index> starts = by_degree(degrees);
  for (std::size_t i = 0; i < std::min(n, kMaxStarts); ++i) {
    Grouping groups = k_means(points, seed_centres(points, starts[i], k));
    const double kept = kept_over_random(stats, experts, groups, k);
    if (kept > most * (1 + kTie)) {
      most = kept;
      best = std::move(groups);
    }
  }
  return best;
}

}  // namespace grace
