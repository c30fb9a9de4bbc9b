#include "grace/kernels/norm.h"

#include <cmath>
#include <cstddef>

namespace grace::kernels::reference {

void rms_norm(std::span<const float> x, std::span<const float> scale, double eps, std::span<float> y) {
  const std::size_t n = scale.size();
  for (std::size_t t = 0; t < x.size() / n; ++t) {
    double squares = 0;
    for (std::size_t i = 0; i < n; ++i) squares += double{x[t * n + i]} * double{x[t * n + i]};
    for (std::size_t i = 0; i < n; ++i) {
      y[t * n + i] = static_cast<float>(double{x[t * n + i]} /
                                        std::sqrt(squares / static_cast<double>(n) + eps) * double{scale[i]});
    }
  }
}

}  // namespace grace::kernels::reference
