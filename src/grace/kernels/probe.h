// What this processor can do at most, measured in milliseconds: the ceilings that kernels are held to.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "grace/base/thread_pool.h"
#include "grace/kernels/instructions.h"
#include "grace/kernels/packed.h"

namespace grace::kernels {

// Where a product's factors are: in registers already, or each used for as many products as the registers
// allow, loaded from the first cache. They differ for AMX alone, whose tiles two loads of each kind feed
// for four products; elsewhere loads hide behind the products.
enum class Factors { kInRegisters, kLoaded };

struct Peak {
  std::string_view product;     // "vdpbf16ps"
  double operations_per_s = 0;  // of all threads; a multiplication with its addition is two
};

inline constexpr double kProbeSeconds = 0.01;

// The rate of the best product that these instructions have for these numbers, exact ones alone for kInt8,
// on every thread of the pool at once for `seconds`. Errors: the caller's bug, instructions that are not
// usable.
Peak product_peak(const Arithmetic& arithmetic, Factors factors, ThreadPool& pool,
                  double seconds = kProbeSeconds);

// Reads memory that no cache holds, in large pages where the system gives them. Owner of so much of it;
// thread-compatible.
class ReadProbe {
 public:
  // Far more than the last cache of any processor we know.
  static constexpr std::size_t kBytes = std::size_t{512} << 20;

  explicit ReadProbe(ThreadPool& pool, std::size_t bytes = kBytes);
  // Every thread at once for `seconds`, each in several streams that are fetched ahead; from where the last
  // call stopped. REQUIRES: the pool it was made with.
  double bytes_per_s(double seconds = kProbeSeconds);

 private:
  ThreadPool& pool_;
  Bytes memory_;
  std::byte* begin_;  // in memory_, of a large page
  std::size_t bytes_of_thread_;
  std::vector<std::size_t> next_;  // [threads] the piece to read next
};

}  // namespace grace::kernels
