// Which tensor, or which part of one, each weight comes from. Loading and checking walk the same plan.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "grace/model/architecture.h"
#include "grace/model/model.h"

namespace grace {

// A matrix [rows, cols] within a tensor.
struct WeightSource {
  std::string tensor;
  std::string alias;                // what the tensor is called where it is not called so, or empty
  std::vector<std::int64_t> shape;  // the tensor's, as it must be
  std::int64_t begin = 0;           // the matrix's first element
  std::int64_t stride = 0;          // elements from one stored row to the next
  bool transposed = false;          // stored as [cols, rows]
  int rows = 0;
  int cols = 0;
};

// A weight and where it goes: to a view, or for norms and biases to values of its own.
struct DenseSlot {
  WeightSource source;
  MatrixView* matrix = nullptr;
  std::vector<float>* values = nullptr;
};

// Every weight of `weights` (layers is sized here), but the head of a tied model. Pointers are valid while
// `weights` is not resized.
std::vector<DenseSlot> dense_slots(const ModelConfig& config, const WeightNames& names,
                                   DenseWeights& weights);
DenseSlot lm_head_slot(const ModelConfig& config, const WeightNames& names, DenseWeights& weights);

// Gate, up, down.
using ExpertSources = std::array<WeightSource, 3>;
// The sources of a layer's experts, each for itself or all fused, whichever the checkpoint has. `expert` is
// in [0, E). Errors: unsupported when they are fused and the shapes do not tell how.
Result<ExpertSources> expert_sources(const ModelConfig& config, const WeightNames& names,
                                     const Checkpoint& checkpoint, int decoder_layer, ExpertId expert);

// Errors: no such tensor; invalid_input for another shape; unsupported for a dtype that is not bf16, f16 or
// f32. Reads no weight.
Result<TensorView> find_source(const Checkpoint& checkpoint, const WeightSource& source);

}  // namespace grace
