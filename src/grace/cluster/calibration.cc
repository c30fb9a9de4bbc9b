#include "grace/cluster/calibration.h"

#include <algorithm>
#include <cmath>

#include "grace/base/check.h"

namespace grace {
namespace {

constexpr double kLargeShare = 1.0 / 16;
constexpr double kNoise = 0.05;
constexpr double kOutOfTen = 0.1;  // rounds that may say otherwise

// Between the two nearest samples. REQUIRES: sorted, not empty.
double quantile(std::span<const double> sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

std::vector<double> sorted(std::span<const double> samples) {
  std::vector<double> values(samples.begin(), samples.end());
  std::ranges::sort(values);
  return values;
}

double median(std::span<const double> samples) { return quantile(sorted(samples), 0.5); }

// [ranks][rounds]: rates over the median rank's.
std::vector<std::vector<double>> ratios_of(std::span<const std::vector<double>> rates) {
  std::vector<std::vector<double>> ratios(rates.front().size());
  for (const std::vector<double>& round : rates) {
    GRACE_CHECK(round.size() == ratios.size(), "every round has every rank");
    const double middle = median(round);
    for (std::size_t rank = 0; rank < round.size(); ++rank) ratios[rank].push_back(round[rank] / middle);
  }
  return ratios;
}

}  // namespace

Figure figure_of(std::span<const double> samples) {
  GRACE_CHECK(!samples.empty(), "a figure needs a sample");
  const std::vector<double> values = sorted(samples);
  const double middle = quantile(values, 0.5);
  return {middle, middle != 0 ? (quantile(values, 0.75) - quantile(values, 0.25)) / middle : 0};
}

LinkFit fit_link(std::span<const ExchangeSample> samples) {
  GRACE_CHECK(!samples.empty(), "a link needs samples");
  const auto [least, most] = std::ranges::minmax(samples, {}, &ExchangeSample::bytes);
  GRACE_CHECK(least.bytes > 0 && least.bytes < most.bytes, "a link needs two sizes");
  std::vector<double> latencies;
  for (const ExchangeSample& s : samples)
    if (s.bytes == least.bytes) latencies.push_back(s.seconds);
  const Figure latency = figure_of(latencies);
  std::vector<double> rates;
  std::vector<double> whole_rates;
  for (const ExchangeSample& s : samples) {
    if (s.bytes == least.bytes || s.bytes < kLargeShare * most.bytes) continue;
    if (s.seconds > latency.value) rates.push_back(s.bytes / (s.seconds - latency.value));
    whole_rates.push_back(s.bytes / s.seconds);
  }
  const Figure rate = figure_of(rates.empty() ? whole_rates : rates);
  return {{rate.value, latency.value}, latency.spread, rate.spread};
}

Figure rate_of(std::span<const std::vector<double>> rates) {
  GRACE_CHECK(!rates.empty() && !rates.front().empty(), "a rate needs a round and a rank");
  std::vector<double> middles;
  for (const std::vector<double>& round : rates) middles.push_back(median(round));
  return figure_of(middles);
}

std::vector<double> relative_speeds(std::span<const std::vector<double>> rates) {
  GRACE_CHECK(!rates.empty() && !rates.front().empty(), "a speed needs a round and a rank");
  std::vector<double> speeds;
  for (const std::vector<double>& ratios : ratios_of(rates)) {
    const std::vector<double> values = sorted(ratios);
    const bool is_faster = quantile(values, kOutOfTen) > 1 + kNoise;
    const bool is_slower = quantile(values, 1 - kOutOfTen) < 1 - kNoise;
    const bool is_known = std::ssize(values) >= kLeastRoundsForSpeeds && (is_faster || is_slower);
    const double speed = std::max(0.01, std::round(quantile(values, 0.5) * 100) / 100);
    speeds.push_back(is_known ? speed : 1);
  }
  return speeds;
}

}  // namespace grace
