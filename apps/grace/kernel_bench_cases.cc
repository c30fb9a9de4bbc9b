#include "kernel_bench_cases.h"

#include <algorithm>
#include <cmath>

#include "grace/base/bf16.h"
#include "grace/base/rng.h"

namespace grace::app {

std::vector<std::uint16_t> random_bf16(std::size_t count, int depth, std::uint64_t seed, ThreadPool& pool) {
  constexpr std::size_t kPart = std::size_t{1} << 18;
  constexpr int kExponentOfOne = 127;
  // Magnitudes are spread over [2^e, 2^(e + 1)), whose root mean square is about 1.5 of its begin.
  const int exponent = static_cast<int>(std::lround(-std::log2(1.5 * std::sqrt(depth))));
  const auto bits = static_cast<std::uint16_t>((kExponentOfOne + exponent) << 7);
  std::vector<std::uint16_t> values(count);
  const Rng rng(seed);
  pool.for_each((count + kPart - 1) / kPart, [&](std::size_t part, int) {
    Rng mine = rng.fork(part);
    const std::size_t end = std::min(count, (part + 1) * kPart);
    for (std::size_t i = part * kPart; i < end; i += 4) {
      std::uint64_t random = mine.next();
      for (std::size_t k = i; k < std::min(i + 4, end); ++k, random >>= 16)
        values[k] = static_cast<std::uint16_t>((random & 0x807fU) | bits);
    }
  });
  return values;
}

std::vector<float> widened(std::span<const std::uint16_t> values) {
  std::vector<float> wide(values.size());
  std::ranges::transform(values, wide.begin(), f32_of_bf16);
  return wide;
}

double relative_error(std::span<const float> got, std::span<const float> expected) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double d = static_cast<double>(got[i]) - static_cast<double>(expected[i]);
    difference += d * d;
    size += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  return std::sqrt(difference / size);
}

std::vector<KernelGroup> kernel_groups(const KernelOptions& options, ThreadPool& pool) {
  std::vector<KernelGroup> groups{expert_group(options, pool)};
  for (KernelGroup& group : dense_groups(options, pool)) groups.push_back(std::move(group));
  groups.push_back(attention_group(options, pool));
  return groups;
}

}  // namespace grace::app
