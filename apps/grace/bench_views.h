// What grace bench prints: the table, its page, and its JSON.
#pragma once

#include "bench_measure.h"
#include "output.h"

namespace grace::app {

Output output_of(const Measurements& measured, const BenchFlags& flags, const Job& job);

}  // namespace grace::app
