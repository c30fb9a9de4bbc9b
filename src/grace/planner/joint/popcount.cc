#include "grace/planner/joint/popcount.h"

#include <bit>

// The loader picks a clone for the machine; sanitizers run before that is possible.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define GRACE_CLONES __attribute__((target_clones("arch=icelake-server", "arch=x86-64-v3", "default")))
#else
#define GRACE_CLONES
#endif

namespace grace::joint {

GRACE_CLONES std::int64_t count_and(const std::uint64_t* a, const std::uint64_t* b, std::size_t words) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < words; ++i) sum += std::popcount(a[i] & b[i]);
  return sum;
}

GRACE_CLONES std::int64_t count_and_not(const std::uint64_t* a, const std::uint64_t* b,
                                        const std::uint64_t* c, std::size_t words) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < words; ++i) sum += std::popcount(a[i] & b[i] & ~c[i]);
  return sum;
}

}  // namespace grace::joint
