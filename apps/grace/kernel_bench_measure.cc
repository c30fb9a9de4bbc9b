#include "kernel_bench_measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace grace::app {
namespace {

using Clock = std::chrono::steady_clock;

// Short enough for the machine to stay as it is.
constexpr double kLeastSeconds = 0.02;

struct TimedCall {
  double seconds = 0;
  Work work;
};

// The median of as many calls as take kLeastSeconds, so that one that was taken off its core does not count,
// as in the probes.
template <typename Call>
TimedCall time_calls(Call call) {
  std::vector<TimedCall> calls;
  for (double elapsed = 0; elapsed < kLeastSeconds; elapsed += calls.back().seconds) {
    const Clock::time_point begin = Clock::now();
    const Work work = call();
    calls.push_back({std::chrono::duration<double>(Clock::now() - begin).count(), work});
  }
  const auto middle = calls.begin() + std::ssize(calls) / 2;
  std::ranges::nth_element(calls, middle, {}, &TimedCall::seconds);
  return *middle;
}

KernelRound measure_round(const KernelCase& one, Ceilings& ceilings) {
  const Ceiling before = ceilings.look(one.numbers);
  const TimedCall call = time_calls(one.call);
  const Ceiling after = ceilings.look(one.numbers);
  KernelRound round{
      call.seconds,
      call.work,
      {(before.operations_per_s + after.operations_per_s) / 2, (before.bytes_per_s + after.bytes_per_s) / 2},
      0};
  if (!one.peer) return round;
  round.peer_seconds = time_calls([&] {
                         one.peer();
                         return Work();
                       }).seconds;
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
