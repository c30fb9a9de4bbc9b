// Rows shared out to a pool.
#pragma once

#include <algorithm>
#include <cstddef>

#include "grace/base/thread_pool.h"

namespace grace::kernels {

// Below this many values a pool takes longer to wake than to be waited for.
inline constexpr std::size_t kFewValues = 1U << 14;

// body(first, last) over all of [0, rows), each row once. `values`: of a row.
template <typename Body>
void for_each_share(std::size_t rows, std::size_t values, ThreadPool& pool, const Body& body) {
  const auto threads = static_cast<std::size_t>(pool.num_threads());
  if (threads == 1 || rows * values < kFewValues) return body(std::size_t{0}, rows);
  const std::size_t shares = std::min(rows, 4 * threads);
  pool.for_each(shares, [&](std::size_t s, int) { body(rows * s / shares, rows * (s + 1) / shares); });
}

}  // namespace grace::kernels
