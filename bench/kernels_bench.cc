// Matrix products and one expert, in every instruction set this processor has and in all numbers. Each result
// is proved against the reference before it is timed. Weights are warm: `grace bench --kernels` measures the
// rest.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "grace/base/bf16.h"
#include "grace/base/rng.h"
#include "grace/kernels/kernels.h"

namespace grace::kernels {
namespace {

// bf16 numbers, so that only int8 rounds them.
std::vector<float> random_values(std::size_t count, std::uint64_t seed, double scale = 1) {
  Rng rng(seed);
  std::vector<float> values(count);
  for (float& v : values) v = f32_of_bf16(bf16_of_f32(static_cast<float>((2 * rng.uniform() - 1) * scale)));
  return values;
}

// The root mean square of the difference, relative.
bool close(std::span<const float> got, std::span<const float> expected, double bound) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double d = static_cast<double>(got[i]) - static_cast<double>(expected[i]);
    difference += d * d;
    size += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  return difference <= bound * bound * size;
}

void count_operations(benchmark::State& state, double operations) {
  state.counters["op/s"] = benchmark::Counter(operations, benchmark::Counter::kIsIterationInvariantRate);
}

void bench_matmul(benchmark::State& state, const Arithmetic& arithmetic) {
  const int rows = static_cast<int>(state.range(0));
  const int in = static_cast<int>(state.range(1));
  const int out = static_cast<int>(state.range(2));
  const auto x = random_values(static_cast<std::size_t>(rows) * static_cast<std::size_t>(in), 1);
  const auto weight = random_values(static_cast<std::size_t>(out) * static_cast<std::size_t>(in), 2);
  const PackedMatrix packed = pack(weight, out, in, arithmetic);
  std::vector<float> y(static_cast<std::size_t>(rows) * static_cast<std::size_t>(out));
  std::vector<float> expected(y.size());
  reference::matmul(x, weight, out, in, expected);
  matmul_rows(x, packed, y);
  if (!close(y, expected, arithmetic.numbers == Numbers::kInt8 ? 0.02 : 5e-5))
    return state.SkipWithError("matmul differs from the reference");
  for (auto _ : state) {
    matmul_rows(x, packed, y);
    benchmark::DoNotOptimize(y.data());
    benchmark::ClobberMemory();
  }
  count_operations(state, 2.0 * rows * in * out);
}

void bench_expert_ffn(benchmark::State& state, const Arithmetic& arithmetic) {
  const int rows = static_cast<int>(state.range(0));
  const int hidden = static_cast<int>(state.range(1));
  const int ffn = static_cast<int>(state.range(2));
  const auto size = static_cast<std::size_t>(hidden) * static_cast<std::size_t>(ffn);
  const auto x = random_values(static_cast<std::size_t>(rows) * static_cast<std::size_t>(hidden), 1);
  // Scaled so that intermediate values stay near one, as trained weights keep them.
  const auto gate = random_values(size, 2, 1 / std::sqrt(hidden));
  const auto up = random_values(size, 3, 1 / std::sqrt(hidden));
  const auto down = random_values(size, 4, 1 / std::sqrt(ffn));
  const PackedExpert expert = pack_expert(gate, up, down, hidden, ffn, arithmetic);
  std::vector<float> y(x.size()), expected(x.size());
  reference::expert_ffn(x, gate, up, down, hidden, ffn, expected);
  std::vector<const float*> from;
  std::vector<float*> to;
  for (std::size_t at = 0; at < x.size(); at += static_cast<std::size_t>(hidden)) {
    from.push_back(x.data() + at);
    to.push_back(y.data() + at);
  }
  expert_ffn(from, expert, to);
  const double bound = arithmetic.numbers == Numbers::kInt8   ? 0.08
                       : arithmetic.numbers == Numbers::kBf16 ? 0x1p-8
                                                              : 5e-5;
  if (!close(y, expected, bound)) return state.SkipWithError("expert_ffn differs from the reference");
  for (auto _ : state) {
    expert_ffn(from, expert, to);
    benchmark::DoNotOptimize(y.data());
    benchmark::ClobberMemory();
  }
  count_operations(state, 6.0 * rows * hidden * ffn);
}

[[maybe_unused]] const bool registered = [] {
  for (const Instructions instructions : usable_instructions()) {
    for (const Numbers numbers : {Numbers::kF32, Numbers::kBf16, Numbers::kInt8}) {
      const Arithmetic arithmetic{instructions, numbers};
      const std::string path = fmt::format("/{}/{}", name_of(instructions), name_of(numbers));
      benchmark::RegisterBenchmark(("matmul" + path).c_str(),
                                   [=](benchmark::State& state) { bench_matmul(state, arithmetic); })
          ->ArgNames({"rows", "in", "out"})
          ->Args({1, 1024, 1024})
          ->Args({8, 1024, 1024})
          ->Args({64, 1024, 1024})
          ->Args({61, 1000, 1000});
      benchmark::RegisterBenchmark(("expert_ffn" + path).c_str(),
                                   [=](benchmark::State& state) { bench_expert_ffn(state, arithmetic); })
          ->ArgNames({"rows", "H", "F"})
          ->ArgsProduct({{1, 8, 64}, {1024}, {512}})
          ->Args({8, 2048, 1024});
    }
  }
  return true;
}();

}  // namespace
}  // namespace grace::kernels

BENCHMARK_MAIN();
