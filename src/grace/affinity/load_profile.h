// How often each expert was chosen, from a source that only counted: enough to balance by, and silent on
// which experts fire together.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "grace/affinity/affinity.h"
#include "grace/base/ids.h"
#include "grace/base/result.h"

namespace grace {

// Of one expert in one layer: above any count, and small enough that a layer's sum fits 63 bits.
inline constexpr std::int64_t kMaxLoad = std::int64_t{1} << 46;

struct LoadProfile {
  std::string model;
  std::string source;
  int num_experts = 0;              // E
  int experts_per_token = 0;        // K; 0: the source does not say
  std::vector<int> decoder_layers;  // [M]: the decoder layer of each moe ordinal
  // [M][E] (token, expert) assignments. Whole numbers, also where the source rounded or averaged.
  std::vector<std::vector<std::int64_t>> loads;

  int num_moe_layers() const { return static_cast<int>(decoder_layers.size()); }
  bool operator==(const LoadProfile&) const = default;
};

// Ways in which the profile is not one, a line each, at most 20: `layer 3: expert 7 has a load of -1`.
std::vector<std::string> violations(const LoadProfile& profile);

// Whether the file is meant to be one, sound or not, by its first bytes; false where it cannot be read.
bool is_load_profile(const std::filesystem::path& path);

// The JSON file of docs/formats/load-profile.md; the same profile gives the same bytes. Errors: io;
// invalid_input with the place, the value and the bound.
Result<LoadProfile> read_load_profile(const std::filesystem::path& path);
// The same from memory; `place` stands for the path in messages.
Result<LoadProfile> parse_load_profile(std::string_view text, std::string_view place);
// Errors: io; invalid_input with the first of violations(profile).
Status write_load_profile(const std::filesystem::path& path, const LoadProfile& profile);

// What the trace counts, co-activation left out.
LoadProfile load_profile_of(const Trace& trace);
// A trace of the same model without a token, for what asks of a trace its model and shape alone.
Trace without_tokens(const LoadProfile& loads);
// [M] For strategies that look at load alone. What is not known is empty: affinity, and with it `between`.
std::vector<LayerStats> stats_of(const LoadProfile& profile);
// FNV-1a over shape and loads, 16 hex digits, for provenance.
std::string hash_of(const LoadProfile& profile);

}  // namespace grace
