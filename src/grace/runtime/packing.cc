#include "grace/runtime/packing.h"

#include <optional>
#include <string>
#include <utility>

namespace grace {
namespace {

kernels::PackedMatrix pack_matrix(const RankContext& context, const Checkpoint& checkpoint,
                                  const MatrixView& weight, const kernels::Arithmetic& arithmetic) {
  std::string name;
  if (context.cache != nullptr) {
    name = checkpoint.place_of(weight) + (weight.transposed ? ".transposed" : "");
    const kernels::Storage storage = kernels::storage_of(weight.element, arithmetic.numbers);
    if (auto kept = context.cache->find(name, {weight.rows, weight.cols, storage, arithmetic}, context.pool))
      return *std::move(kept);
  }
  kernels::PackedMatrix packed = kernels::pack(weight, arithmetic, context.pool);
  checkpoint.give_back(weight);
  if (context.cache != nullptr) context.cache->keep(name, packed);
  return packed;
}

std::optional<kernels::PackedExpert> find_expert(const RankContext& context, const std::string& name,
                                                 const FfnWeights& ffn) {
  const kernels::ExpertShape shape = kernels::expert_shape(ffn.gate, ffn.up, ffn.down, context.arithmetic);
  auto gate_up = context.cache->find(
      name + ".gate_up", {shape.gate_up_columns, ffn.gate.cols, shape.storage, context.arithmetic},
      context.pool);
  if (!gate_up) return std::nullopt;
  auto down = context.cache->find(
      name + ".down", {ffn.down.rows, ffn.down.cols, shape.storage, context.arithmetic}, context.pool);
  if (!down) return std::nullopt;
  return kernels::PackedExpert{*std::move(gate_up), *std::move(down), ffn.gate.rows};
}

}  // namespace

kernels::PackedMatrix pack_weight(const RankContext& context, const Checkpoint& checkpoint,
                                  const MatrixView& weight) {
  return pack_matrix(context, checkpoint, weight, context.arithmetic);
}

kernels::PackedMatrix pack_router(const RankContext& context, const Checkpoint& checkpoint,
                                  const MatrixView& weight) {
  return pack_matrix(context, checkpoint, weight, {context.arithmetic.instructions, kernels::Numbers::kF32});
}

kernels::PackedExpert pack_ffn(const RankContext& context, const Checkpoint& checkpoint,
                               const FfnWeights& ffn) {
  std::string name;
  if (context.cache != nullptr) {
    name = checkpoint.place_of(ffn.gate);
    if (auto kept = find_expert(context, name, ffn)) return *std::move(kept);
  }
  kernels::PackedExpert packed =
      kernels::pack_expert(ffn.gate, ffn.up, ffn.down, context.arithmetic, context.pool);
  for (const MatrixView* weight : {&ffn.gate, &ffn.up, &ffn.down}) checkpoint.give_back(*weight);
  if (context.cache != nullptr) {
    context.cache->keep(name + ".gate_up", packed.gate_up);
    context.cache->keep(name + ".down", packed.down);
  }
  return packed;
}

}  // namespace grace
