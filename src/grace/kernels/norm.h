// Root mean square norms.
#pragma once

#include <span>

#include "grace/base/thread_pool.h"

namespace grace::kernels {

// y [T, n] = x / sqrt(mean(x^2) + eps) * scale, row by row. y may be x.
void rms_norm(std::span<const float> x, std::span<const float> scale, double eps, std::span<float> y,
              ThreadPool& pool);
// One row in place, on the calling thread.
void rms_norm_row(std::span<float> x, std::span<const float> scale, double eps);

namespace reference {
void rms_norm(std::span<const float> x, std::span<const float> scale, double eps, std::span<float> y);
}  // namespace reference

}  // namespace grace::kernels
