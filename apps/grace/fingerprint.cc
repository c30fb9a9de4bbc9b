#include "fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <span>
#include <vector>

#include "grace/base/hash.h"
#include "grace/files/json_file.h"
#include "grace/files/mapped_file.h"

namespace grace::app {
namespace {

constexpr std::size_t kBlocks = 64, kBlockBytes = 4096;
// Own words of the program file, so that they can be told there.
constexpr const char* kProgram = "grace program " GRACE_VERSION;
// Options whose value is a file to read, and those whose value may differ from machine to machine: paths, and
// what a machine can bear. A plan counts by what it says.
const std::set<std::string> kInputs = {"--text", "--prompts", "--token-ids", "--routing"};
const std::set<std::string> kLocal = {"--threads", "--hosts",   "--plan",        "--out",
                                      "--record",  "--html",    "--logits",      "--timeline",
                                      "--write",   "--kernels", "--packed-cache"};

void add_sampled(Fnv1a& hash, std::span<const std::byte> bytes) {
  hash.add_int(bytes.size());
  if (bytes.size() <= kBlocks * kBlockBytes) {
    hash.add(bytes);
    return;
  }
  for (std::size_t b = 0; b < kBlocks; ++b)  // the first and the last byte are in
    hash.add(bytes.subspan((bytes.size() - kBlockBytes) / (kBlocks - 1) * b, kBlockBytes));
  hash.add(bytes.last(kBlockBytes));
}

// What cannot be read counts as empty: whoever needs it says so better.
void add_file(Fnv1a& hash, const std::filesystem::path& path) {
  const Result<MappedFile> file = MappedFile::open(path);
  if (file.ok()) add_sampled(hash, file.value().bytes());
}

std::string hash_of_model(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string extension = entry.path().extension().string();
    const bool counts = extension == ".safetensors" || entry.path().filename() == "config.json" ||
                        entry.path().filename() == "generation_config.json" ||
                        entry.path().filename() == "tokenizer.json";
    if (counts) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  Fnv1a hash;
  for (const std::filesystem::path& file : files) {
    hash.add(file.filename().string());
    add_file(hash, file);
  }
  return hash.text();
}

std::string hash_of_cluster(const Cluster& cluster) {
  Fnv1a hash;
  for (const auto& node : cluster.devices_of_node) hash.add_int(node.size());
  return hash.text();
}

// What the engine goes by; provenance and predictions may differ.
std::string hash_of_plan(const Plan& plan) {
  Fnv1a hash;
  hash.add(plan.routing).add_int(static_cast<std::uint64_t>(plan.num_experts));
  for (const LayerPlan& layer : plan.layers) {
    for (const auto* copies : {&layer.primaries_of_device, &layer.replicas_of_device})
      for (const auto& experts : *copies) {
        hash.add_int(experts.size());
        for (const ExpertId expert : experts) hash.add_int(static_cast<std::uint64_t>(expert.value));
      }
    for (const double load : layer.predicted_load) hash.add_int(std::bit_cast<std::uint64_t>(load));
    hash.add_int(std::bit_cast<std::uint64_t>(layer.cover.node))
        .add_int(std::bit_cast<std::uint64_t>(layer.cover.device));
    for (const double price : layer.cover.price) hash.add_int(std::bit_cast<std::uint64_t>(price));
  }
  return hash.text();
}

std::string packed(const Fingerprint& mine) {
  Json json = Json::object();
  for (const auto& [thing, value] : mine) json[thing] = value;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<Fingerprint> unpacked(int rank, std::span<const std::byte> bytes) {
  std::string text(bytes.size(), ' ');
  if (!bytes.empty()) std::memcpy(text.data(), bytes.data(), bytes.size());
  const std::string place = fmt::format("rank {}: its fingerprint", rank);
  const Json json = GRACE_TRY(parse_json(text, place));
  Fingerprint all;
  if (!json.is_object()) return peer_lost(place + " is no object");
  for (const auto& [thing, value] : json.items())
    if (value.is_string()) all[thing] = value.get<std::string>();
  return all;
}

std::string told(const Fingerprint& fingerprint, const std::string& thing) {
  const auto found = fingerprint.find(thing);
  return found == fingerprint.end() ? "none" : found->second;
}

}  // namespace

Fingerprint fingerprint_of(const Context& context) {
  std::string options;
  Fnv1a inputs;
  for (int i = 1; i < context.argc; ++i) {
    std::string word = context.argv[i];
    std::string value = i + 1 < context.argc ? context.argv[i + 1] : "";
    const std::size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;
    const bool joined = equals != std::string::npos;
    if (joined) {
      value = word.substr(equals + 1);
      word.resize(equals);
    }
    const bool is_input = kInputs.contains(word);
    if (is_input) add_file(inputs.add(word), value);
    if (is_input || kLocal.contains(word)) {
      if (!joined) ++i;
      continue;
    }
    if (word.find('/') != std::string::npos) continue;  // the model's folder
    options += (options.empty() ? "" : " ") + word;
    if (joined && value.find('/') == std::string::npos) options += "=" + value;
  }
  return {{"program", kProgram}, {"options", options}, {"input", inputs.text()}};
}

Fingerprint fingerprint_of(const Job& job, const Context& context) {
  Fingerprint all = fingerprint_of(context);
  all["model"] = hash_of_model(job.model);
  all["cluster"] = hash_of_cluster(job.cluster);
  all["plan"] = hash_of_plan(job.plan);
  return all;
}

Status agree_on(Transport& transport, const Fingerprint& mine) {
  const std::string text = packed(mine);
  const auto all = GRACE_TRY(transport.all_gather(std::as_bytes(std::span(text))));
  const Fingerprint first = GRACE_TRY(unpacked(0, all[0]));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const Fingerprint theirs = GRACE_TRY(unpacked(static_cast<int>(rank), all[rank]));
    // The program first: another program may well count other things.
    for (const char* thing : {"program", "model", "plan", "cluster", "input", "options"})
      if (told(theirs, thing) != told(first, thing))
        return invalid_input(fmt::format("rank {}: its {} {} not rank 0's: {}, not {}", rank, thing,
                                         std::string_view(thing) == "options" ? "are" : "is",
                                         told(theirs, thing), told(first, thing)));
  }
  return {};
}

}  // namespace grace::app
