// From the checkpoint's weights to the kernels' panels.
#pragma once

#include "grace/kernels/packed.h"
#include "grace/model/model.h"
#include "grace/runtime/context.h"

namespace grace {

// Packs a weight and lets go of the file's pages, so that a model is never held twice.
inline kernels::PackedMatrix pack_weight(const RankContext& context, const Checkpoint& checkpoint,
                                         const MatrixView& weight) {
  kernels::PackedMatrix packed = kernels::pack(weight, context.arithmetic, context.pool);
  checkpoint.give_back(weight);
  return packed;
}

// A router's: f32 whatever the numbers, so that choices depend on them no more than they must.
inline kernels::PackedMatrix pack_router(const RankContext& context, const Checkpoint& checkpoint,
                                         const MatrixView& weight) {
  kernels::PackedMatrix packed =
      kernels::pack(weight, {context.arithmetic.instructions, kernels::Numbers::kF32}, context.pool);
  checkpoint.give_back(weight);
  return packed;
}

inline kernels::PackedExpert pack_ffn(const RankContext& context, const Checkpoint& checkpoint,
                                      const FfnWeights& ffn) {
  kernels::PackedExpert packed =
      kernels::pack_expert(ffn.gate, ffn.up, ffn.down, context.arithmetic, context.pool);
  for (const MatrixView* weight : {&ffn.gate, &ffn.up, &ffn.down}) checkpoint.give_back(*weight);
  return packed;
}

}  // namespace grace
