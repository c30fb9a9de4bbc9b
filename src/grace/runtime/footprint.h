// What a rank will hold in memory, told from config and plan before a weight is read.
#pragma once

#include <cstdint>
#include <string>

#include "grace/base/ids.h"
#include "grace/kernels/packed.h"
#include "grace/model/model.h"
#include "grace/plan/plan.h"

namespace grace {

// What decides how large a weight is: how the file has it, and what it is multiplied as.
struct WeightForm {
  Element element = Element::kF32;
  kernels::Numbers numbers = kernels::Numbers::kF32;
};

// As the checkpoint has its experts, the bulk of it; f32, the largest, where it lacks them. Reads no weight.
WeightForm form_of(const ModelConfig& config, const Checkpoint& checkpoint, kernels::Numbers numbers);

// Bytes, in the layout that the kernels use.
struct Footprint {
  std::int64_t experts = 0;
  std::int64_t dense =
      0;  // attention, norms, routers, dense layers, shared experts, head: what every rank holds whole
  std::int64_t cache = 0;  // keys and values, or latent vectors
  std::int64_t total() const { return experts + dense + cache; }
};

// cached_tokens: of all sequences that the rank serves at once, prompt and new ones. An architecture that is
// not known (a replay's) has no dense weights. REQUIRES: the plan fits the config, and the device is one of
// it.
Footprint footprint_of(const ModelConfig& config, const Plan& plan, DeviceId device,
                       std::int64_t cached_tokens = 0, const WeightForm& form = {});

// `14.1 GiB (experts 12.9, dense 1.2)`, in the unit that the sum calls for; the cache where there is one.
std::string words_of(const Footprint& footprint);
// `8.0 GiB`.
std::string words_of_bytes(double bytes);

}  // namespace grace
