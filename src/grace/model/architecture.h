// What tells one architecture from another: how its config.json reads, and what its weights are called.
// A new one is one .cc with an Architecture and one line in the table of architecture.cc.
#pragma once

#include <span>
#include <string_view>

#include "grace/base/result.h"
#include "grace/files/json_file.h"
#include "grace/model/model.h"

namespace grace {

// Tensor names; `{layer}` stands for the decoder layer, `{expert}` for the logical expert. Empty: the
// architecture has no such tensor.
struct WeightNames {
  std::string_view embedding, final_norm, lm_head;
  std::string_view input_norm, post_attention_norm;
  std::string_view q, k, v, o;
  std::string_view q_norm, k_norm;
  std::string_view router;
  std::string_view gate, up, down;  // one expert each
  std::string_view fused_gate_up,
      fused_down;  // all experts of a layer: [E, 2F, H] with the gate rows first, and [E, H, F]
};

struct Architecture {
  std::string_view name;        // in `architectures` of config.json
  std::string_view model_type;  // in `model_type`, which decides where `architectures` is absent
  // Everything of ModelConfig but `name`. `place` names the file in messages.
  Result<ModelConfig> (*read_config)(const Json& json, std::string_view place);
  WeightNames names;
};

extern const Architecture kOlmoe;

std::span<const Architecture* const> known_architectures();
// Errors: unsupported `PLACE: architecture X is not one of ...`.
Result<const Architecture*> find_architecture(std::string_view name, std::string_view place);

}  // namespace grace
