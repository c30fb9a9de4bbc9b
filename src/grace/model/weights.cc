#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "grace/model/weight_plan.h"

namespace grace {
namespace {

MatrixView view_of(const TensorView& tensor, const WeightSource& source) {
  MatrixView view;
  view.rows = source.rows;
  view.cols = source.cols;
  view.element = tensor.dtype == Dtype::kF32    ? Element::kF32
                 : tensor.dtype == Dtype::kBf16 ? Element::kBf16
                                                : Element::kF16;
  view.data = tensor.bytes.data() + source.begin * static_cast<std::int64_t>(bytes_of(view.element));
  view.stride = source.stride;
  view.transposed = source.transposed;
  return view;
}

Result<MatrixView> find_view(const Checkpoint& checkpoint, const WeightSource& source) {
  return view_of(GRACE_TRY(find_source(checkpoint, source)), source);
}

Status fill(const Checkpoint& checkpoint, const DenseSlot& slot) {
  if (slot.matrix != nullptr) {
    *slot.matrix = GRACE_TRY(find_view(checkpoint, slot.source));
    return {};
  }
  const TensorView tensor = GRACE_TRY(find_source(checkpoint, slot.source));
  slot.values->resize(static_cast<std::size_t>(slot.source.cols));
  return read_as_f32(tensor, slot.source.tensor, 0, slot.source.cols, *slot.values);
}

// The bytes from a weight's first element to its last.
std::span<const std::byte> bytes_of(const MatrixView& weight) {
  const std::int64_t runs = weight.transposed ? weight.cols : weight.rows;
  const std::int64_t run = weight.transposed ? weight.rows : weight.cols;
  const std::int64_t elements = (runs - 1) * weight.stride + run;
  return {weight.data, static_cast<std::size_t>(elements) * bytes_of(weight.element)};
}

bool same_bytes(const MatrixView& a, const MatrixView& b) {
  return a.element == b.element && std::ranges::equal(bytes_of(a), bytes_of(b));
}

}  // namespace

void read_row(const MatrixView& weight, int row, std::span<float> out) {
  GRACE_CHECK(!weight.transposed && row >= 0 && row < weight.rows, "no such row");
  GRACE_CHECK(std::cmp_equal(out.size(), weight.cols), "room for another number of values");
  const std::byte* from =
      weight.data + std::int64_t{row} * weight.stride * static_cast<std::int64_t>(bytes_of(weight.element));
  if (weight.element == Element::kF32) {
    std::memcpy(out.data(), from, out.size_bytes());
    return;
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from + 2 * i, sizeof(bits));
    out[i] = weight.element == Element::kBf16 ? f32_of_bf16(bits) : f32_of_f16(bits);
  }
}

void Checkpoint::give_back(const MatrixView& weight) const {
  if (weight.empty()) return;
  const std::span<const std::byte> bytes = bytes_of(weight);
  for (const Safetensors& file : files_)
    if (file.give_back(bytes)) return;
}

std::string Checkpoint::place_of(const MatrixView& weight) const {
  const std::span<const std::byte> bytes = bytes_of(weight);
  for (const Safetensors& file : files_)
    if (const std::optional<std::size_t> offset = file.offset_of(bytes))
      return fmt::format("{}.{}", file.path().stem().string(), *offset);
  GRACE_CHECK(false, "a weight of another checkpoint");
  return {};
}

std::vector<std::filesystem::path> Checkpoint::paths() const {
  std::vector<std::filesystem::path> paths;
  for (const Safetensors& file : files_) paths.push_back(file.path());
  return paths;
}

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
    if (config.tie_word_embeddings && same_bytes(weights.lm_head, weights.embedding)) weights.lm_head = {};
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
    weights.ffn.gate = GRACE_TRY(find_view(checkpoint, sources[0]));
    weights.ffn.up = GRACE_TRY(find_view(checkpoint, sources[1]));
    weights.ffn.down = GRACE_TRY(find_view(checkpoint, sources[2]));
    loaded.push_back(std::move(weights));
  }
  return loaded;
}

}  // namespace grace
