#include <algorithm>
#include <utility>

#include "grace/model/weight_plan.h"

namespace grace {
namespace {

// out: [rows, cols].
Status read_source(const Checkpoint& checkpoint, const WeightSource& source, std::vector<float>& out) {
  const TensorView tensor = GRACE_TRY(find_source(checkpoint, source));
  const auto rows = static_cast<std::size_t>(source.rows);
  const auto cols = static_cast<std::size_t>(source.cols);
  out.resize(rows * cols);
  if (!source.transposed) {
    return read_as_f32(tensor, source.tensor, source.begin, source.begin + std::ssize(out), out);
  }
  std::vector<float> column(rows);
  for (std::size_t col = 0; col < cols; ++col) {
    const std::int64_t begin = source.begin + static_cast<std::int64_t>(col) * source.stride;
    GRACE_TRY(read_as_f32(tensor, source.tensor, begin, begin + source.rows, column));
    for (std::size_t row = 0; row < rows; ++row) out[row * cols + col] = column[row];
  }
  return {};
}

Status fill(const Checkpoint& checkpoint, const DenseSlot& slot) {
  if (slot.matrix != nullptr) {
    slot.matrix->rows = slot.source.rows;
    slot.matrix->cols = slot.source.cols;
  }
  return read_source(checkpoint, slot.source, *slot.values);
}

Result<Matrix> read_matrix(const Checkpoint& checkpoint, const WeightSource& source) {
  Matrix matrix{source.rows, source.cols, {}};
  GRACE_TRY(read_source(checkpoint, source, matrix.values));
  return matrix;
}

}  // namespace

Result<DenseWeights> load_dense(const ModelConfig& config, const Checkpoint& checkpoint) {
  const Architecture* architecture =
      GRACE_TRY(find_architecture(config.architecture, checkpoint.folder().string()));
  DenseWeights weights;
  for (const DenseSlot& slot : dense_slots(config, architecture->names, weights)) {
    GRACE_TRY(fill(checkpoint, slot));
  }
  const DenseSlot head = lm_head_slot(config, architecture->names, weights);
  if (!config.tie_word_embeddings || checkpoint.has(head.source.tensor)) {
    GRACE_TRY(fill(checkpoint, head));
    // A tied model's file may hold the same head again, or, as transformers has it, one of its own that
    // counts.
    if (config.tie_word_embeddings && weights.lm_head.values == weights.embedding.values)
      weights.lm_head = {};
  }
  return weights;
}

Result<std::vector<ExpertWeights>> load_experts(const ModelConfig& config, const Checkpoint& checkpoint,
                                                MoeOrdinal layer, std::span<const ExpertId> experts) {
  GRACE_CHECK(layer.value >= 0 && layer.idx() < config.moe_layers.size(), "no such MoE layer");
  const Architecture* architecture =
      GRACE_TRY(find_architecture(config.architecture, checkpoint.folder().string()));
  std::vector<ExpertWeights> loaded;
  loaded.reserve(experts.size());
  for (const ExpertId expert : experts) {
    GRACE_CHECK(expert.value >= 0 && expert.value < config.num_experts, "no such expert");
    const ExpertSources sources = GRACE_TRY(
        expert_sources(config, architecture->names, checkpoint, config.moe_layers[layer.idx()], expert));
    ExpertWeights weights;
    weights.expert = expert;
    weights.gate = GRACE_TRY(read_matrix(checkpoint, sources[0]));
    weights.up = GRACE_TRY(read_matrix(checkpoint, sources[1]));
    weights.down = GRACE_TRY(read_matrix(checkpoint, sources[2]));
    loaded.push_back(std::move(weights));
  }
  return loaded;
}

}  // namespace grace
