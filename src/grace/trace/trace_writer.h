// A trace written while it is read elsewhere: tokens go to disk as they come.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "grace/base/result.h"
#include "grace/files/atomic_file.h"
#include "grace/trace/trace.h"

namespace grace {

// What is known of a trace before its first token.
struct TraceHead {
  std::string model;
  std::string source;
  int num_experts = 0;              // E; 0: told at the end, and ids take 16 bits
  int experts_per_token = 0;        // K
  std::vector<int> decoder_layers;  // [M]
};

// Memory grows by 16 bytes a sequence. The file appears by finish(), whole or not at all; what it holds is
// what write_trace would have written of the same trace. Thread-compatible.
class TraceWriter {
 public:
  // REQUIRES: E in [0, kMaxExperts], K >= 1, M >= 1, layers ascending. Errors: io.
  static Result<TraceWriter> create(const std::filesystem::path& path, TraceHead head);

  // The next tokens belong to a new sequence.
  void begin_sequence();
  // ids: [n, M, K], below E or kNotRouted, no expert twice in one token's choices. phase: prompt (kPrefill)
  // or generated (kDecode); a sequence's prompt comes first. REQUIRES: begin_sequence() was called. Errors:
  // io.
  Status add_tokens(std::span<const std::uint16_t> ids, Phase phase);
  std::int64_t num_tokens() const { return num_tokens_; }
  std::int64_t num_sequences() const { return std::ssize(offsets_); }
  // The phase is prefill or decode where all tokens are, else mixed, with each sequence's prompt length.
  // REQUIRES: num_experts is the head's where that has one, and greater than every id. Errors: io.
  Status finish(int num_experts);

 private:
  TraceWriter(AtomicFile file, TraceHead head);
  std::string header_of(int num_experts, Phase phase, std::int64_t num_sequences,
                        std::int64_t num_tokens) const;

  AtomicFile file_;
  TraceHead head_;
  bool narrow_;
  std::int64_t reserved_ = 0;  // bytes of the header, written last
  std::int64_t num_tokens_ = 0, num_prompt_tokens_ = 0;
  std::vector<std::int64_t> offsets_;         // first token of each sequence
  std::vector<std::int64_t> prompt_lengths_;  // of each sequence
  std::vector<std::uint8_t> narrowed_;
};

}  // namespace grace
