// A seeded generator whose stream is the same on every machine and compiler.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

namespace grace {

// xoshiro256** seeded by splitmix64 (Blackman & Vigna, 2018). Thread-compatible; copies continue the same
// stream.
class Rng {
 public:
  explicit Rng(std::uint64_t seed);
  std::uint64_t next();
  // Uniform in [0, bound), without bias (Lemire, 2019). REQUIRES: bound > 0.
  std::uint64_t below(std::uint64_t bound);
  // Uniform in [0, 1), 53 bits.
  double uniform();
  // A generator for stream `key`, independent of this one's position: same seed and key, same stream.
  Rng fork(std::uint64_t key) const;

  template <typename T>
  void shuffle(std::span<T> items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  std::uint64_t seed_;
  std::uint64_t state_[4];
};

}  // namespace grace
