// Options that several commands share, and the small files they name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "grace/base/result.h"
#include "grace/cluster/cluster.h"
#include "grace/plan/plan.h"
#include "grace/runtime/engine.h"
#include "grace/text/tokenizer.h"

namespace CLI {
class App;
}

namespace grace::app {

// How long a rank may be silent before its job is given up.
inline constexpr double kDefaultDeadlineS = 10;

// --deadline, for every command that runs ranks.
void add_deadline(CLI::App& command, double& seconds);

// --dispatch where the engine chooses.
inline constexpr const char* kChosenDispatch = "auto";
inline constexpr const char* kDispatchHelp =
    "flat, per_device, two_stage, padded, allgather, or auto: per_device or two_stage, in each step the "
    "quicker one by the cluster's constants";

// How a model is to be run; the same for eval, profile, run, bench and demo.
struct EngineFlags {
  std::string model;
  std::string cluster = "1x1";
  std::string transport;  // empty: mpi inside mpirun, else in_process
  std::string dispatch = "per_device";
  std::string dtype = "f32", kernels = "auto";
  std::string plan;          // empty: vanilla
  std::string hosts;         // an mpirun hostfile
  std::string packed_cache;  // a folder; empty: none
  int threads = 1;           // per rank
  bool pin = false;
  std::uint64_t seed = 0;
  std::string combine = "exact";
  std::string wire = "f32", overlap = "auto", parts = "auto", progress = "polling";
  bool exact = false;
  double deadline_s = kDefaultDeadlineS;
};

// MODEL, --cluster, --transport, --dispatch, --plan, --threads, --pin, --seed, --dtype, --kernels,
// --packed-cache,
// --combine, --exact, --hosts, --deadline and more.
void add_engine_flags(CLI::App& command, EngineFlags& flags);

// auto, on or off. Errors: invalid_input.
Result<Overlap> parse_overlap(const std::string& value);
// auto (0) or 1 to kMostParts. Errors: invalid_input.
Result<int> parse_parts(const std::string& value);

// Lists of token ids: a JSON list of lists. Errors: io; invalid_input for anything else and for an id outside
// [0, vocab_size).
Result<std::vector<std::vector<std::int32_t>>> read_token_lists(const std::filesystem::path& path,
                                                                int vocab_size);
// One prompt a line: a JSON string, or an object with `text` or `prompt`; `kind`, where there is one, comes
// along.
struct Prompt {
  std::string text, kind;
};
Result<std::vector<Prompt>> read_prompts(const std::filesystem::path& path);
// The tokenizer of a model folder, or of a tokenizer.json.
Result<Tokenizer> load_tokenizer(const std::filesystem::path& model);
// The text of a file as token ids. Errors: also invalid_input, with the path, for bytes that are not UTF-8.
Result<std::vector<std::int32_t>> read_and_encode(const Tokenizer& tokenizer,
                                                  const std::filesystem::path& path);
// Consecutive pieces of `length` ids; the last may be shorter.
std::vector<std::vector<std::int32_t>> windows_of(const std::vector<std::int32_t>& ids, int length);
// Tokens of a window: what was asked for, else 256 or as many as the model has positions. Errors:
// invalid_input outside [1, max_positions].
Result<int> context_of(std::optional<int> asked, int max_positions);
// A cluster of the plan's shape, for commands that are given no other.
Result<Cluster> cluster_of(const Plan& plan);

}  // namespace grace::app
