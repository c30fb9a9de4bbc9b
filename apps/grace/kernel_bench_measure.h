// A kernel between two looks at what the machine can do at that moment.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "grace/base/result.h"
#include "grace/kernels/probe.h"
#include "kernel_bench_cases.h"

namespace grace::app {

struct Ceiling {
  double operations_per_s = 0, bytes_per_s = 0;
};

// One round: the median of calls one after another, the ceilings right before and after them, and the other
// library's calls right after those.
struct KernelRound {
  double seconds = 0;  // of a call
  Work work;           // of a call
  Ceiling ceiling;     // the mean of both looks
  double peer_seconds = 0;

  double arithmetic_s() const { return work.operations / ceiling.operations_per_s; }
  double memory_s() const { return work.bytes / ceiling.bytes_per_s; }
  // Of the least time that the ceilings allow.
  double roofline_share() const { return std::max(arithmetic_s(), memory_s()) / seconds; }
};

struct KernelFigure {
  std::string name;
  std::string product;  // of the ceiling
  double error = 0, bound = 0;
  std::vector<KernelRound> rounds;
};

// Looks at the ceilings. Owner of the memory that it reads; the pool outlives it.
class Ceilings {
 public:
  Ceilings(kernels::Instructions instructions, ThreadPool& pool)
      : instructions_(instructions), pool_(pool), read_(pool) {}
  Ceiling look(kernels::Numbers numbers);
  // The product that the last look found best for these numbers.
  std::string product(kernels::Numbers numbers) const;

 private:
  kernels::Instructions instructions_;
  ThreadPool& pool_;
  kernels::ReadProbe read_;
  std::string products_[3];
};

// Proves the kernel against the reference, then measures it. Errors: internal, for a result that is not the
// reference's.
Result<KernelFigure> measure_kernel(const KernelCase& one, int rounds, Ceilings& ceilings);

}  // namespace grace::app
