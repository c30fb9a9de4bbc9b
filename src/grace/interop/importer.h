// What other engines recorded -> a trace, where they say what each token chose, or a load profile, where they
// only counted. One .cc per format and one line in importers().
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grace/affinity/load_profile.h"
#include "grace/base/result.h"
#include "grace/trace/trace.h"

namespace grace {

struct ImportOptions {
  std::string format;               // an importer's name; empty: detected
  std::string model;                // empty: what the source says, else its name
  int num_experts = 0;              // E; 0: what the source says, else the largest id + 1, with a warning
  int experts_per_token = 0;        // K of sources that do not say; 0: unknown
  std::vector<int> decoder_layers;  // [M] of the MoE layers; empty: what the source says, else:
  int dense_layers = -1;  // decoder layers before the first MoE layer; -1: what the source says, else 0
  int same_tokens = 1;    // consecutive ranks that recorded the same tokens: only one of them counts
  Phase phase = Phase::kPrefill;  // of sources that do not say; prefill or decode
  // Bytes read and in all, from the caller's thread. Returns whether to go on; where not, the import ends
  // with an io error and leaves no file.
  std::function<bool(std::int64_t done, std::int64_t total)> progress;
};

// What was read, for the person who brought it.
struct ImportSummary {
  std::string format;
  bool has_tokens = false;  // a trace was written; else a load profile
  int num_experts = 0, experts_per_token = 0, moe_layers = 0;
  std::int64_t tokens = 0, sequences = 0;  // of a trace
  std::int64_t assignments = 0;
  std::int64_t not_routed = 0;        // choices that were sentinels, of tokens that chose something
  std::int64_t tokens_left_out = 0;   // that chose nothing at all: padding, or answered from a cache
  std::vector<std::string> warnings;  // a line each: what was assumed, and what looks wrong
};

// Where in the source tokens came from, for messages.
struct TokenPlace {
  std::string_view place;                            // a file, and what in it
  std::int64_t first_token = 0;                      // that the first token has there
  std::span<const std::int64_t> line_of_layer = {};  // [M] where each layer stands on a line of its own
};

// Where an importer puts what it reads. Thread-compatible.
class RecordingSink {
 public:
  virtual ~RecordingSink() = default;
  // Before any token, once. num_experts: what the source says, or 0. decoder_layers: [M].
  virtual Status begin_tokens(int num_experts, int experts_per_token, std::vector<int> decoder_layers) = 0;
  // The next tokens belong to a new sequence.
  virtual Status begin_sequence() = 0;
  // ids: [n, M, K], logical; kNotRecorded: a choice that was not routed. A token without any is left out. A
  // sequence's prompt (kPrefill) comes before what was generated (kDecode). Errors: invalid_input at the
  // place for an id outside [0, E) and for an expert twice in one token's choices.
  virtual Status add_tokens(std::span<const std::int32_t> ids, Phase phase, const TokenPlace& place) = 0;
  // For a source that only counted, in place of the three above. Model and source may be empty. Errors:
  // invalid_input for what is no profile, or does not divide by same_tokens.
  virtual Status set_loads(LoadProfile profile) = 0;
  virtual void warn(std::string line) = 0;
  // After `bytes` more of the source were read. Errors: io where the person wants no more.
  virtual Status read_bytes(std::int64_t bytes) = 0;

  static constexpr std::int32_t kNotRecorded = -1;
};

struct Importer {
  std::string_view name;   // as in ImportOptions::format: "sglang"
  std::string_view reads;  // one line for --help: "recorder .pt files, and the API's base64"
  // Whether the files look like it, by their first bytes and names alone.
  bool (*recognises)(std::span<const std::filesystem::path> files);
  // Memory in use does not grow with a per-token recording. A folder comes as its files, sorted.
  Status (*read)(std::span<const std::filesystem::path> files, const ImportOptions& options,
                 RecordingSink& sink);
};
std::span<const Importer> importers();

// Reads the files (or one folder) and writes a trace or a load profile to `out`, whole or not at all. Errors:
// io; invalid_input with file, place, value and bound; invalid_input naming --from's words where no format,
// or more than one, fits.
Result<ImportSummary> import_files(std::span<const std::filesystem::path> files,
                                   const std::filesystem::path& out, const ImportOptions& options);

}  // namespace grace
