// Keeps what the gates chose, sequence by sequence, until it is taken as a trace.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grace/model/model.h"
#include "grace/runtime/moe_layer.h"
#include "grace/trace/trace.h"

namespace grace {

// Thread-compatible.
class TraceRecorder {
 public:
  void reset(int num_sequences) { sequences_.assign(static_cast<std::size_t>(num_sequences), {}); }
  // One step. choices_of_layer: [M], each of the step's tokens.
  void record(const ModelConfig& config, const StepInput& input, std::span<const Choices> choices_of_layer);
  // What was recorded, slot after slot, unused slots left out; then nothing is recorded any more.
  Trace take(const ModelConfig& config);

 private:
  struct Sequence {
    std::vector<std::uint16_t> ids;    // [t, M, K]
    std::vector<float> weights;        // [t, M, K]
    std::vector<std::int32_t> tokens;  // [t]
    std::int64_t prompt_length = 0;
  };
  std::vector<Sequence> sequences_;
};

}  // namespace grace
