// Memory that is used again in each layer and step.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace grace {

// Of one purpose; only grows, so that what is asked for again is not allocated again.
class Scratch {
 public:
  // Not initialised. Valid until it is asked for more.
  std::span<float> take(std::size_t size) {
    if (values_.size() < size) values_.resize(size);
    return {values_.data(), size};
  }

 private:
  std::vector<float> values_;
};

}  // namespace grace
