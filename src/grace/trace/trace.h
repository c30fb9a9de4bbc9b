// What tokens asked for: the experts each token chose in each MoE layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grace/base/ids.h"
#include "grace/base/result.h"

namespace grace {

// In memory a choice that was not routed (padding, a dropped token) is this, whatever width the file uses.
inline constexpr std::uint16_t kNotRouted = std::numeric_limits<std::uint16_t>::max();

enum class Phase { kPrefill, kDecode, kMixed };

// Tokens of one sequence are consecutive rows. Owner of its arrays.
struct Trace {
  std::string model;
  std::string source;
  int num_experts = 0;              // E
  int experts_per_token = 0;        // K
  std::vector<int> decoder_layers;  // [M]: the decoder layer of each moe ordinal
  Phase phase = Phase::kPrefill;

  std::vector<std::uint16_t> topk_ids;          // [T, M, K]
  std::vector<float> topk_weights;              // [T, M, K], or empty when not recorded
  std::vector<std::int64_t> sequence_offsets;   // [S + 1], from 0 to T
  std::vector<std::int64_t> prompt_lengths;     // [S], or empty: all of it is prompt when phase is prefill, none when decode
  std::vector<std::int32_t> token_ids;          // [T], or empty

  int num_moe_layers() const { return static_cast<int>(decoder_layers.size()); }
  std::int64_t num_tokens() const { return sequence_offsets.empty() ? 0 : sequence_offsets.back(); }
  int num_sequences() const { return sequence_offsets.empty() ? 0 : static_cast<int>(sequence_offsets.size()) - 1; }
  // The K choices of one token in one layer.
  std::span<const std::uint16_t> choices(std::int64_t token, MoeOrdinal layer) const;
  // Their gate weights, or nothing where none are recorded.
  std::span<const float> weights(std::int64_t token, MoeOrdinal layer) const;
  // Tokens of sequence s that were prompt (the rest were decoded one by one).
  std::int64_t prompt_length(int sequence) const;
  bool operator==(const Trace&) const = default;
};

// Reads the safetensors file of docs/formats/trace.md. Errors: io; invalid_input with token, layer and value for an id outside [0, E), for an expert
// chosen twice by one token, for offsets that do not ascend from 0 to T, for shapes or metadata that disagree or are absent.
Result<Trace> read_trace(const std::filesystem::path& path);
// The same from memory; `place` stands for the path in messages.
Result<Trace> parse_trace(std::span<const std::byte> bytes, std::string_view place);
// Writes ids as u8 where E <= 255, else u16. REQUIRES: violations(trace) is empty. Errors: io.
Status write_trace(const std::filesystem::path& path, const Trace& trace);

// Ways in which the trace is not one, a line each, at most 20: `token 7, layer 2: expert 64 is outside [0, 64)`. All numbers count from 0.
std::vector<std::string> violations(const Trace& trace);

// The trace of the given sequences, in that order. REQUIRES: each in [0, S).
Trace select_sequences(const Trace& trace, std::span<const int> sequences);
// The first `count` MoE layers of it. REQUIRES: 1 <= count <= num_moe_layers().
Trace first_layers(const Trace& trace, int count);

// The sequences of all traces, one trace after another; gate weights and token ids are kept where all have them, and the phase is mixed where they differ.
// Errors: invalid_input where the traces are none, or not of one shape (experts, experts per token, decoder layers).
Result<Trace> join_traces(std::span<const Trace> traces);

// Sequences dealt into parts whose shares are given (they add up to 1), shuffled by seed; ascending inside a part.
// Example: split_sequences(40, {0.4, 0.1, 0.5}, 1) are the plan, choose and judge parts.
std::vector<std::vector<int>> split_sequences(int num_sequences, std::span<const double> shares, std::uint64_t seed);

// A hash of ids and shape (FNV-1a, 64 bits, 16 hex digits) for provenance.
std::string hash_of(const Trace& trace);

}  // namespace grace
