#include "options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "grace/files/json_file.h"
#include "grace/files/mapped_file.h"

namespace grace::app {

void add_deadline(CLI::App& command, double& seconds) {
  command.add_option(
      "--deadline", seconds,
      "with mpi: seconds within which the command ends once a rank is killed, stopped or cut off "
      "(default 10)");
}

void add_engine_flags(CLI::App& command, EngineFlags& flags) {
  command.add_option("MODEL", flags.model, "a Hugging Face model folder")->required();
  command.add_option("--cluster", flags.cluster, "NODESxDEVICES, a preset or a cluster file (default 1x1)");
  command.add_option("--transport", flags.transport, "in_process (ranks are threads, the default) or mpi");
  command.add_option("--dispatch", flags.dispatch, fmt::format("{} (default per_device)", kDispatchHelp));
  command.add_option("--plan", flags.plan, "a plan file (default: vanilla expert parallelism)");
  command.add_option("--threads", flags.threads, "threads of each rank (default 1)");
  command.add_flag("--pin", flags.pin,
                   "hold each thread to a processor of its own; for machines that do nothing else");
  command.add_option("--seed", flags.seed, "seed of everything random (default 0)");
  command.add_option(
      "--dtype", flags.dtype,
      "what products are calculated with: f32 (default), bf16 (weights and the vectors they meet, as most "
      "checkpoints have them; sums are f32; twice as fast where the processor has it) or int8 (half "
      "the memory again, and a loss that grace eval shows)");
  command.add_option("--kernels", flags.kernels,
                     "the instructions they use: auto (default, the best that this processor has), amx, "
                     "avx512-bf16, avx512, avx2 or portable");
  command.add_option("--packed-cache", flags.packed_cache,
                     "a folder on each machine for weights in the kernels' layout, as large as the weights: "
                     "the first start fills it, later ones map it and start sooner");
  command.add_option("--combine", flags.combine,
                     "exact (default): the same text to the bit for every lossless plan and every cluster; "
                     "reduced: results are "
                     "added up on the way, fewer bytes, the last bits may differ");
  command.add_flag("--exact", flags.exact, "the same as --combine exact");
  command.add_option("--wire", flags.wire,
                     "what vectors travel as: f32 (default), or bf16: half the bytes, each value rounded to "
                     "within 1/256 of itself");
  command.add_option("--overlap", flags.overlap,
                     "whether what is here is computed while the rest flies: on, off, or auto (default): "
                     "where that pays");
  command.add_option("--parts", flags.parts,
                     "in how many parts, one behind the other, a step goes through a layer: 1 to 4, or auto "
                     "(default): two where that pays by the cluster's constants");
  command.add_option("--progress", flags.progress,
                     "with mpi, who moves messages while a rank computes: polling (default), the rank itself "
                     "between experts, or a thread beside it");
  command.add_option("--hosts", flags.hosts, "an mpirun hostfile; without it everything is on this machine");
  add_deadline(command, flags.deadline_s);
}

Result<Overlap> parse_overlap(const std::string& value) {
  if (value == "auto") return Overlap::kWherePays;
  if (value == "on") return Overlap::kAlways;
  if (value == "off") return Overlap::kOff;
  return invalid_input(fmt::format("--overlap: '{}' is none of auto, on and off", value));
}

Result<int> parse_parts(const std::string& value) {
  if (value == "auto") return 0;
  for (int parts = 1; parts <= kMostParts; ++parts)
    if (value == std::to_string(parts)) return parts;
  return invalid_input(fmt::format("--parts: '{}' is neither auto nor within [1, {}]", value, kMostParts));
}

Result<std::vector<std::vector<std::int32_t>>> read_token_lists(const std::filesystem::path& path,
                                                                int vocab_size) {
  const Json json = GRACE_TRY(read_json(path));
  if (!json.is_array())
    return invalid_input(fmt::format("{}: not a list of lists of token ids", path.string()));
  std::vector<std::vector<std::int32_t>> lists;
  for (const Json& entry : json) {
    if (!entry.is_array())
      return invalid_input(
          fmt::format("{}: entry {} is not a list of token ids", path.string(), lists.size()));
    std::vector<std::int32_t> ids;
    for (const Json& id : entry) {
      const std::string place = fmt::format("{}: list {}, place {}", path.string(), lists.size(), ids.size());
      if (!id.is_number_integer())
        return invalid_input(fmt::format("{}: {} is not a token id", place, id.dump()));
      const auto value = id.get<std::int64_t>();
      if (value < 0 || value >= vocab_size)
        return invalid_input(fmt::format("{}: token id {} is outside [0, {})", place, value, vocab_size));
      ids.push_back(static_cast<std::int32_t>(value));
    }
    lists.push_back(std::move(ids));
  }
  if (lists.empty()) return invalid_input(fmt::format("{}: no list of token ids", path.string()));
  return lists;
}

Result<std::vector<Prompt>> read_prompts(const std::filesystem::path& path) {
  const std::string text = GRACE_TRY(read_text(path));
  std::vector<Prompt> prompts;
  int line_number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    const std::string place = fmt::format("{}:{}", path.string(), ++line_number);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Json json = GRACE_TRY(parse_json(line, place));
    Prompt prompt;
    if (json.is_string()) {
      prompt.text = json.get<std::string>();
    } else if (json.is_object()) {
      prompt.text = GRACE_TRY(get_string(json, json.contains("prompt") ? "prompt" : "text", place));
      if (json.contains("kind")) prompt.kind = GRACE_TRY(get_string(json, "kind", place));
    } else {
      return invalid_input(place + ": neither a string nor an object with a text");
    }
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) return invalid_input(path.string() + ": no prompts");
  return prompts;
}

Result<Tokenizer> load_tokenizer(const std::filesystem::path& model) {
  return Tokenizer::load(std::filesystem::is_directory(model) ? model / "tokenizer.json" : model);
}

Result<std::vector<std::int32_t>> read_and_encode(const Tokenizer& tokenizer,
                                                  const std::filesystem::path& path) {
  const std::string text = GRACE_TRY(read_text(path));
  Result<std::vector<std::int32_t>> ids = tokenizer.encode(text);
  if (!ids.ok()) return Error{ids.error().kind, fmt::format("{}: {}", path.string(), ids.error().message)};
  if (ids.value().empty()) return invalid_input(path.string() + ": no text");
  return ids;
}

std::vector<std::vector<std::int32_t>> windows_of(const std::vector<std::int32_t>& ids, int length) {
  std::vector<std::vector<std::int32_t>> windows;
  const auto step = static_cast<std::size_t>(length);
  for (std::size_t begin = 0; begin < ids.size(); begin += step) {
    const std::size_t size = std::min(step, ids.size() - begin);
    const auto first = ids.begin() + static_cast<std::ptrdiff_t>(begin);
    windows.emplace_back(first, first + static_cast<std::ptrdiff_t>(size));
  }
  return windows;
}

Result<int> context_of(std::optional<int> asked, int max_positions) {
  const int context = asked.value_or(std::min(256, max_positions));
  if (context >= 1 && context <= max_positions) return context;
  return invalid_input(fmt::format("--context: {} is outside [1, {}]", context, max_positions));
}

Result<Cluster> cluster_of(const Plan& plan) {
  Cluster cluster = GRACE_TRY(parse_cluster("1x1"));
  const Device device = cluster.devices_of_node.at(0).at(0);
  cluster.devices_of_node.clear();
  for (const int devices : plan.devices_per_node)
    cluster.devices_of_node.emplace_back(static_cast<std::size_t>(devices), device);
  cluster.name = fmt::format("{} devices in {} nodes", plan.num_devices(), plan.devices_per_node.size());
  return cluster;
}

}  // namespace grace::app
