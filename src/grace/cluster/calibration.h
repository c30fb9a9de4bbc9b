// From measured exchanges and rates to a cluster's constants. Pure functions; who measures lives elsewhere.
#pragma once

#include <span>
#include <vector>

#include "grace/cluster/cluster.h"

namespace grace {

// What several samples of one thing say.
struct Figure {
  double value = 0;   // the median
  double spread = 0;  // between the quartiles, over the median
};
// REQUIRES: at least one sample, none of them NaN.
Figure figure_of(std::span<const double> samples);

// One exchange of a level: all of its ends at once, each sending to every other.
struct ExchangeSample {
  double bytes = 0;  // the most that one end (a device; between nodes, a node) sends or receives
  double seconds = 0;
};
struct LinkFit {
  Link link;
  double latency_spread = 0;  // as a Figure's
  double rate_spread = 0;
};
// Latency: the median time of the smallest size. Rate: the median of bytes over the time beyond that
// latency, over the sizes from a sixteenth of the largest on; where no time is beyond it, over the whole
// time. A quarter of the samples may be anything without moving either by more than the noise of the rest.
// REQUIRES: two sizes or more; positive, finite seconds and bytes.
LinkFit fit_link(std::span<const ExchangeSample> samples);

// The rate of the median rank. rates: [rounds][ranks]. REQUIRES: a round and a rank; all positive.
Figure rate_of(std::span<const std::vector<double>> rates);
// Each rank's speed, [ranks], relative to the median rank of its round, so that what slows all ranks for a
// while counts for nothing: the median over rounds, to a hundredth. 1 for a rank that less than nine tenths
// of the rounds find at least 5 % away on the same side, and for all where there are fewer than
// kLeastRoundsForSpeeds: chance would tell one in a few dozen equal ranks apart. REQUIRES: as above.
inline constexpr int kLeastRoundsForSpeeds = 8;
std::vector<double> relative_speeds(std::span<const std::vector<double>> rates);

}  // namespace grace
