// From the checkpoint's weights to the kernels' panels.
#pragma once

#include "grace/kernels/packed.h"
#include "grace/model/model.h"
#include "grace/runtime/context.h"

namespace grace {

// Packs a weight and lets go of the file's pages, so that a model is never held twice; where the context has
// a cache, what that holds is taken in place of it, and what it lacks is kept there.
kernels::PackedMatrix pack_weight(const RankContext& context, const Checkpoint& checkpoint,
                                  const MatrixView& weight);
// A router's: f32 whatever the numbers, so that choices depend on them no more than they must.
kernels::PackedMatrix pack_router(const RankContext& context, const Checkpoint& checkpoint,
                                  const MatrixView& weight);
kernels::PackedExpert pack_ffn(const RankContext& context, const Checkpoint& checkpoint,
                               const FfnWeights& ffn);

}  // namespace grace
