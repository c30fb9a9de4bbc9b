// What `grace bench --kernels` hands out.
#pragma once

#include <string>
#include <vector>

#include "kernel_bench_measure.h"
#include "output.h"

namespace grace::app {

struct KernelFigures {
  std::string title;  // of a group
  std::vector<KernelFigure> figures;
};

struct KernelReport {
  KernelOptions options;
  int rounds = 0;
  // Of products with their factors in registers alone, where that is another figure.
  std::vector<kernels::Peak> in_registers;
  std::vector<KernelFigures> groups;
};

// "AMD EPYC (family 25, model 17), 2 cores".
std::string processor_name();
// The instruction sets that are not here, or nothing.
std::string lacking_instructions();

Output output_of(const KernelReport& report);

}  // namespace grace::app
