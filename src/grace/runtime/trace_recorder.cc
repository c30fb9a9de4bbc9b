#include "grace/runtime/trace_recorder.h"

namespace grace {
namespace {

template <typename T>
void append(std::vector<T>& to, std::span<const T> from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

void TraceRecorder::record(const ModelConfig& config, const StepInput& input,
                           std::span<const Choices> choices_of_layer) {
  const auto top = static_cast<std::size_t>(config.experts_per_token);
  std::size_t token = 0;
  for (std::size_t s = 0; s < input.sequences.size(); ++s) {
    Sequence& sequence = sequences_[static_cast<std::size_t>(input.sequences[s])];
    if (sequence.tokens.empty()) sequence.prompt_length = input.num_new[s];
    for (const std::size_t last = token + static_cast<std::size_t>(input.num_new[s]); token < last; ++token) {
      sequence.tokens.push_back(input.token_ids[token]);
      for (const Choices& choices : choices_of_layer) {
        append(sequence.ids, std::span<const std::uint16_t>(choices.experts).subspan(token * top, top));
        append(sequence.weights, std::span<const float>(choices.weights).subspan(token * top, top));
      }
    }
  }
}

Trace TraceRecorder::take(const ModelConfig& config) {
  Trace trace;
  trace.model = config.name;
  trace.source = "grace";
  trace.num_experts = config.num_experts;
  trace.experts_per_token = config.experts_per_token;
  trace.decoder_layers = config.moe_layers;
  trace.sequence_offsets.push_back(0);
  bool decoded = false;
  for (const Sequence& sequence : sequences_) {
    if (sequence.tokens.empty()) continue;
    const auto length = static_cast<std::int64_t>(sequence.tokens.size());
    append(trace.topk_ids, std::span<const std::uint16_t>(sequence.ids));
    append(trace.topk_weights, std::span<const float>(sequence.weights));
    append(trace.token_ids, std::span<const std::int32_t>(sequence.tokens));
    trace.sequence_offsets.push_back(trace.sequence_offsets.back() + length);
    trace.prompt_lengths.push_back(sequence.prompt_length);
    decoded = decoded || sequence.prompt_length < length;
  }
  trace.phase = decoded ? Phase::kMixed : Phase::kPrefill;
  reset(static_cast<int>(sequences_.size()));
  return trace;
}

}  // namespace grace
