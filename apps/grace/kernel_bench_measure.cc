#include "kernel_bench_measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace grace::app {
namespace {

using Clock = std::chrono::steady_clock;

// Long enough for the clock and short enough for the machine to stay as it is.
constexpr double kLeastSeconds = 0.02;

// Seconds of a call, of as many as take kLeastSeconds.
template <typename Call>
double time_calls(Call call) {
  const Clock::time_point begin = Clock::now();
  int calls = 0;
  double elapsed = 0;
  do {
    call();
    ++calls;
    elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
  } while (elapsed < kLeastSeconds);
  return elapsed / calls;
}

KernelRound measure_round(const KernelCase& one, Ceilings& ceilings) {
  const Ceiling before = ceilings.look(one.numbers);
  KernelRound round;
  int calls = 0;
  round.seconds = time_calls([&] {
    round.work += one.call();
    ++calls;
  });
  const Ceiling after = ceilings.look(one.numbers);
  round.work = {round.work.operations / calls, round.work.bytes / calls};
  round.ceiling = {(before.operations_per_s + after.operations_per_s) / 2,
                   (before.bytes_per_s + after.bytes_per_s) / 2};
  if (one.peer) round.peer_seconds = time_calls(one.peer);
  return round;
}

}  // namespace

Ceiling Ceilings::look(kernels::Numbers numbers) {
  const kernels::Peak peak =
      kernels::product_peak({instructions_, numbers}, kernels::Factors::kLoaded, pool_);
  products_[static_cast<std::size_t>(numbers)] = peak.product;
  return {peak.operations_per_s, read_.bytes_per_s()};
}

std::string Ceilings::product(kernels::Numbers numbers) const {
  return products_[static_cast<std::size_t>(numbers)];
}

Result<KernelFigure> measure_kernel(const KernelCase& one, int rounds, Ceilings& ceilings) {
  KernelFigure figure{one.name, {}, 0, one.bound, {}};
  one.call();
  figure.error = one.error();
  if (!(figure.error <= one.bound))
    return internal_error(fmt::format("{}: the result is {:.2g} from the reference's, more than {:.2g}",
                                      one.name, figure.error, one.bound));
  if (one.peer) one.peer();
  for (int i = 0; i < rounds; ++i) figure.rounds.push_back(measure_round(one, ceilings));
  figure.product = ceilings.product(one.numbers);
  return figure;
}

}  // namespace grace::app
