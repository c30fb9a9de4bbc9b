// grace check: what is wrong with a trace, plan, cluster or model folder, if anything.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "context.h"
#include "grace/affinity/load_profile.h"
#include "grace/cluster/cluster.h"
#include "grace/files/json_file.h"
#include "grace/files/mapped_file.h"
#include "grace/interop/exporter.h"
#include "grace/model/model.h"
#include "grace/plan/plan.h"
#include "grace/runtime/footprint.h"
#include "grace/trace/trace.h"
#include "options.h"

namespace grace::app {
namespace {

struct Flags {
  std::vector<std::string> files;
  std::string model;
  bool json = false;
};

struct Finding {
  std::string kind;
  std::vector<std::string> problems;
  std::vector<std::string> notes = {};  // that are no problems
};

// What plans are held against, with how its weights are held unless another --dtype is asked for.
struct KnownModel {
  ModelConfig config;
  WeightForm form;
};
Result<KnownModel> read_known(const std::filesystem::path& folder) {
  KnownModel known;
  known.config = GRACE_TRY(read_model_config(folder));
  if (const auto checkpoint = Checkpoint::open(folder); checkpoint.ok())
    known.form = form_of(known.config, checkpoint.value(), kernels::Numbers::kF32);
  return known;
}

template <typename T>
Finding finding_of(const char* kind, const Result<T>& result) {
  if (result.ok()) return {kind, {}};
  return {kind, {result.error().message}};
}

Finding check_container(const std::filesystem::path& path) {
  const Result<Safetensors> file = Safetensors::open(path);
  if (!file.ok()) return finding_of("safetensors", file);
  if (file.value().tensors().contains("topk_ids") || file.value().metadata().contains("num_experts"))
    return finding_of("trace", read_trace(path));
  return {"safetensors", {}};
}

Finding check_plan(const std::filesystem::path& path, const std::optional<KnownModel>& model) {
  Result<Plan> plan = read_plan(path);
  if (!plan.ok()) return finding_of("plan", plan);
  Finding sound{"plan", {}, {}};
  if (plan.value().is_lossy())
    sound.notes.push_back("lossy: the gate is held to partners, and the text changes");
  if (!model) return sound;
  const Cluster devices = parse_cluster("1x" + std::to_string(plan.value().num_devices())).value();
  const std::vector<int> added = cover_layers(plan.value(), model->config.moe_layers, devices);
  if (!added.empty())
    sound.notes.push_back(
        fmt::format("lacks decoder layers {}: placed as by vanilla", fmt::join(added, ", ")));
  Status fits =
      check_fits(plan.value(), model->config.num_experts, model->config.moe_layers, model->config.name);
  if (fits.ok()) fits = check_partners(plan.value(), model->config.experts_per_token);
  if (fits.ok()) {
    for (int d = 0; d < plan.value().num_devices(); ++d)
      sound.notes.push_back(
          fmt::format("rank {} holds {}", d,
                      words_of(footprint_of(model->config, plan.value(), DeviceId(d), 0, model->form))));
    return sound;
  }
  return {"plan", {fmt::format("{}: {}", path.string(), fits.error().message)}};
}

// Another engine's placement, where it is one.
std::optional<Finding> check_placement(const std::filesystem::path& path) {
  const Result<MappedFile> file = MappedFile::open(path);
  if (!file.ok()) return {};
  const std::string_view bytes(reinterpret_cast<const char*>(file.value().bytes().data()),
                               file.value().bytes().size());
  const Result<const Exporter*> format = exporter_of(bytes, "");
  if (!format.ok() || format.value() == nullptr) return {};
  // Any number of devices divides among one.
  const Result<SlotMap> map =
      format.value()->read(bytes, path.string(), format.value()->says_devices ? 0 : 1);
  const std::string kind = fmt::format("placement for {}", format.value()->name);
  if (!map.ok()) return Finding{kind, {map.error().message}};
  Finding sound{kind, {}, {}};
  sound.notes.push_back(fmt::format("{} layers of {} slots, {} experts", map.value().expert_of_slot.size(),
                                    map.value().num_slots(), map.value().num_experts));
  if (!format.value()->says_devices)
    sound.notes.push_back("for how many devices it is the file does not say");
  return sound;
}

Finding check_json(const std::filesystem::path& path, const std::optional<KnownModel>& model) {
  const Result<Json> json = read_json(path);
  if (!json.ok()) return finding_of("JSON", json);
  const Json& value = json.value();
  if (!value.is_object()) return {"JSON", {path.string() + ": neither a plan nor a cluster: not an object"}};
  if (value.contains("loads") || (value.contains("kind") && value["kind"] == "load_profile"))
    return finding_of("load profile", read_load_profile(path));
  if (std::optional<Finding> placement = check_placement(path)) return *std::move(placement);
  // A broken plan may lack any field, so one that only a plan has is enough.
  for (const char* key : {"layers", "strategy", "decoder_layers", "num_experts"})
    if (value.contains(key)) return check_plan(path, model);
  for (const char* key : {"nodes", "between_devices", "between_nodes", "devices"})
    if (value.contains(key)) return finding_of("cluster", read_cluster(path));
  return {"JSON", {path.string() + ": neither a plan (layers) nor a cluster (nodes)"}};
}

// A safetensors file starts with a length, a JSON file with a brace; what is too short for either is taken by
// its name.
bool looks_like_json(const std::filesystem::path& path) {
  const Result<MappedFile> file = MappedFile::open(path);
  if (!file.ok()) return false;
  const auto bytes = file.value().bytes();
  for (const std::byte byte : bytes) {
    const char c = static_cast<char>(byte);
    if (c == ' ' || c == '\n' || c == '\r' || c == '\t') continue;
    // A container whose header is 91 or 123 bytes long starts with [ or { too, but then with seven zero bytes
    // or a second brace.
    const bool container =
        bytes.size() >= 9 && static_cast<char>(bytes[8]) == '{' && bytes[7] == std::byte{0};
    return (c == '{' || c == '[') && !container;
  }
  return path.extension() == ".json";
}

Finding check_one(const std::filesystem::path& path, const std::optional<KnownModel>& model) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return {"model", check_model(path)};
  if (!std::filesystem::exists(path, ignored)) return {"file", {path.string() + ": no such file"}};
  if (!looks_like_json(path))
    if (std::optional<Finding> placement = check_placement(path)) return *std::move(placement);
  return looks_like_json(path) || path.extension() == ".json" ? check_json(path, model)
                                                              : check_container(path);
}

Result<int> check(const Flags& flags) {
  std::optional<KnownModel> model;
  if (!flags.model.empty()) model = GRACE_TRY(read_known(flags.model));
  bool sound = true;
  Json list = Json::array();
  for (const std::string& file : flags.files) {
    const Finding finding = check_one(file, model);
    sound = sound && finding.problems.empty();
    list.push_back(
        {{"file", file}, {"kind", finding.kind}, {"problems", finding.problems}, {"notes", finding.notes}});
    if (flags.json) continue;
    if (finding.problems.empty()) print(fmt::format("{}: OK ({})\n", file, finding.kind));
    for (const std::string& note : finding.notes) print(fmt::format("{}: {}\n", file, note));
    for (const std::string& problem : finding.problems)
      print(problem.find(file) == std::string::npos ? fmt::format("{}: {}\n", file, problem)
                                                    : problem + "\n");
  }
  if (flags.json) print_json(list);
  return sound ? 0 : 2;
}

}  // namespace

void add_check(CLI::App& app, Context& context) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("check",
                                         "What is wrong with traces, load profiles, plans, other engines' "
                                         "placements, clusters or model folders; "
                                         "exit code 2 if anything.");
  command->add_option("FILE", flags->files, "files and model folders; each is recognised by its content")
      ->required();
  command->add_option("--model", flags->model, "a model folder that the plans must fit");
  command->add_flag("--json", flags->json, "one JSON value");
  command->footer("Example:\n  grace check out/plan.json out/en.trace --model models/demo");
  command->callback([flags, &context] { context.action = [flags] { return check(*flags); }; });
}

}  // namespace grace::app
