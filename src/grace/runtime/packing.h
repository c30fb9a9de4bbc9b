// From the model room's matrices to the kernels' panels.
#pragma once

#include <vector>

#include "grace/kernels/kernels.h"
#include "grace/model/model.h"

namespace grace {

// Packs `matrix` and gives its memory back, so that a model is never held twice.
inline kernels::PackedMatrix pack_and_free(Matrix& matrix) {
  kernels::PackedMatrix packed = kernels::pack(matrix.values, matrix.rows, matrix.cols);
  std::vector<float>{}.swap(matrix.values);
  return packed;
}

}  // namespace grace
