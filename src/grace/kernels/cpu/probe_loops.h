// Loops of nothing but products, which no compiler can take apart: what product_peak() times.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "grace/kernels/instructions.h"
#include "grace/kernels/probe.h"

namespace grace::kernels {

struct ProductLoop {
  std::string_view product;
  double operations = 0;  // of a turn
  void (*run)(std::size_t turns) = nullptr;
};

// Those that the instructions have for `numbers`; never empty.
std::span<const ProductLoop> product_loops(Instructions instructions, Numbers numbers, Factors factors);

}  // namespace grace::kernels
