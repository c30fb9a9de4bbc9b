// Matrix products and one expert, in every instruction set this processor has. Each result is proved against
// the reference before it is timed.
#include <benchmark/benchmark.h>

#include <cmath>
#include <string>
#include <vector>

#include "grace/base/rng.h"
#include "grace/kernels/cpu/tile.h"
#include "grace/kernels/kernels.h"

namespace grace::kernels {
namespace {

std::vector<float> random_values(std::size_t count, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(count);
  for (float& v : values) v = static_cast<float>(2 * rng.uniform() - 1);
  return values;
}

bool close(std::span<const float> got, std::span<const float> expected, double bound) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!(std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i])) <= bound)) return false;
  }
  return true;
}

void count_flops(benchmark::State& state, double flops) {
  state.counters["flop/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

void bench_matmul(benchmark::State& state, const Tile& tile) {
  const int rows = static_cast<int>(state.range(0));
  const int in = static_cast<int>(state.range(1));
  const int out = static_cast<int>(state.range(2));
  const auto x = random_values(static_cast<std::size_t>(rows) * static_cast<std::size_t>(in), 1);
  const auto weight = random_values(static_cast<std::size_t>(out) * static_cast<std::size_t>(in), 2);
  const PackedMatrix packed = pack(weight, out, in);
  std::vector<float> y(static_cast<std::size_t>(rows) * static_cast<std::size_t>(out));
  std::vector<float> expected(y.size());
  reference::matmul(x, weight, out, in, expected);
  matmul_rows_with(tile, x, packed, y);
  if (!close(y, expected, 1.2e-7 * in * std::sqrt(in)))
    return state.SkipWithError("matmul differs from the reference");
  for (auto _ : state) {
    matmul_rows_with(tile, x, packed, y);
    benchmark::DoNotOptimize(y.data());
    benchmark::ClobberMemory();
  }
  count_flops(state, 2.0 * rows * in * out);
}

void bench_expert_ffn(benchmark::State& state) {
  const int rows = static_cast<int>(state.range(0));
  const int hidden = static_cast<int>(state.range(1));
  const int ffn = static_cast<int>(state.range(2));
  const auto size = static_cast<std::size_t>(hidden) * static_cast<std::size_t>(ffn);
  const auto x = random_values(static_cast<std::size_t>(rows) * static_cast<std::size_t>(hidden), 1);
  auto gate = random_values(size, 2);
  auto up = random_values(size, 3);
  auto down = random_values(size, 4);
  // Scaled so that intermediate values stay near one, as trained weights keep them.
  for (std::vector<float>* weight : {&gate, &up}) {
    for (float& v : *weight) v /= std::sqrt(static_cast<float>(hidden));
  }
  for (float& v : down) v /= std::sqrt(static_cast<float>(ffn));
  const PackedExpert expert{pack(gate, ffn, hidden), pack(up, ffn, hidden), pack(down, hidden, ffn)};
  std::vector<float> y(x.size());
  std::vector<float> expected(x.size());
  reference::expert_ffn(x, gate, up, down, hidden, ffn, expected);
  expert_ffn(x, expert, y);
  if (!close(y, expected, 1e-4)) return state.SkipWithError("expert_ffn differs from the reference");
  for (auto _ : state) {
    expert_ffn(x, expert, y);
    benchmark::DoNotOptimize(y.data());
    benchmark::ClobberMemory();
  }
  count_flops(state, 6.0 * rows * hidden * ffn);
}
BENCHMARK(bench_expert_ffn)
    ->ArgNames({"rows", "H", "F"})
    ->ArgsProduct({{1, 8, 64}, {1024}, {512}})
    ->Args({8, 2048, 1024});

[[maybe_unused]] const bool registered = [] {
  for (const Tile& tile : usable_tiles()) {
    benchmark::RegisterBenchmark(("bench_matmul/" + std::string(tile.name)).c_str(),
                                 [&tile](benchmark::State& state) { bench_matmul(state, tile); })
        ->ArgNames({"rows", "in", "out"})
        ->Args({1, 1024, 1024})
        ->Args({8, 1024, 1024})
        ->Args({64, 1024, 1024})
        ->Args({61, 1000, 1000});
  }
  return true;
}();

}  // namespace
}  // namespace grace::kernels

BENCHMARK_MAIN();
