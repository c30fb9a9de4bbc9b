// grace bench --kernels: each kernel against this machine's roofline, and against another library.
#pragma once

#include "bench_flags.h"
#include "context.h"

namespace grace::app {

// Errors: invalid_input for options that do not go with it and for what memory cannot hold; internal for a
// kernel whose result is wrong.
Result<int> bench_kernels(const BenchFlags& flags, const Context& context);

}  // namespace grace::app
