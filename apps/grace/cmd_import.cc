// grace import: another engine's recording in, a trace or a load profile out.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <csignal>
#include <memory>

#include "context.h"
#include "grace/base/commas.h"
#include "grace/files/json_file.h"
#include "grace/interop/exporter.h"
#include "grace/interop/importer.h"
#include "options.h"
#include "progress.h"

namespace grace::app {
namespace {

struct Flags {
  std::vector<std::string> files;
  std::string out, layers, phase = "prefill", cluster;
  ImportOptions options;
  bool json = false;
};

volatile std::sig_atomic_t stop_signal = 0;

// Ctrl-C stops the import between two reads, so that what was begun is taken away.
class SignalGuard {
 public:
  SignalGuard() {
    struct sigaction action {};
    action.sa_handler = [](int number) { stop_signal = number; };
    sigemptyset(&action.sa_mask);
    action.sa_flags = static_cast<int>(SA_RESETHAND);  // a second one ends the program at once
    sigaction(SIGINT, &action, &interrupt_);
    sigaction(SIGTERM, &action, &terminate_);
  }
  ~SignalGuard() {
    sigaction(SIGINT, &interrupt_, nullptr);
    sigaction(SIGTERM, &terminate_, nullptr);
  }
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

 private:
  struct sigaction interrupt_ {
  }, terminate_{};
};

// "3,4,7-60" -> 3, 4, 7, 8, ..., 60.
Result<std::vector<int>> parse_layers(const std::string& list) {
  std::vector<int> layers;
  for (const std::string& part : split_at_commas(list)) {
    const char* const end = part.data() + part.size();
    int first = 0, last = 0;
    const auto from = std::from_chars(part.data(), end, first);
    last = first;
    auto stop = from;
    if (from.ec == std::errc() && from.ptr != end && *from.ptr == '-')
      stop = std::from_chars(from.ptr + 1, end, last);
    if (stop.ec != std::errc() || stop.ptr != end || first < 0 || last < first || last > 1'000'000)
      return invalid_input(fmt::format("--layers: '{}' is no layer and no range such as 3-60", part));
    for (int layer = first; layer <= last; ++layer) layers.push_back(layer);
  }
  return layers;
}

Result<ImportOptions> options_of(const Flags& flags) {
  ImportOptions options = flags.options;
  if (!flags.layers.empty()) options.decoder_layers = GRACE_TRY(parse_layers(flags.layers));
  if (flags.phase != "prefill" && flags.phase != "decode")
    return invalid_input(fmt::format("--phase: '{}' is not prefill or decode", flags.phase));
  options.phase = flags.phase == "decode" ? Phase::kDecode : Phase::kPrefill;
  return options;
}

// What to type next.
std::string next_of(const Flags& flags) {
  return fmt::format("grace compare --trace {} --cluster 2x4", flags.out);
}

Json json_of(const Flags& flags, const ImportSummary& summary, double seconds) {
  Json json = {{"out", flags.out},
               {"kind", summary.has_tokens ? "trace" : "load_profile"},
               {"format", summary.format},
               {"layers", summary.moe_layers},
               {"experts", summary.num_experts},
               {"experts_per_token", summary.experts_per_token},
               {"assignments", summary.assignments}};
  if (summary.has_tokens) {
    json["tokens"] = summary.tokens;
    json["sequences"] = summary.sequences;
    json["not_routed"] = summary.not_routed;
    json["tokens_left_out"] = summary.tokens_left_out;
  }
  json["warnings"] = summary.warnings;
  json["next"] = next_of(flags);
  json["seconds"] = seconds;
  return json;
}

std::string text_of(const Flags& flags, const ImportSummary& summary) {
  std::string text =
      summary.has_tokens
          ? fmt::format(
                "{}: a trace of {} tokens in {} sequences, {} MoE layers of {} experts, {} a token; {} "
                "assignments, from {}\n",
                flags.out, summary.tokens, summary.sequences, summary.moe_layers, summary.num_experts,
                summary.experts_per_token, summary.assignments, summary.format)
          : fmt::format("{}: a load profile of {} MoE layers of {} experts; {} assignments, from {}\n",
                        flags.out, summary.moe_layers, summary.num_experts, summary.assignments,
                        summary.format);
  for (const std::string& warning : summary.warnings) text += "warning: " + warning + "\n";
  if (!summary.has_tokens)
    text +=
        "The source only counted: plans can balance load by it; which experts fire together is not known, "
        "nor what traffic follows.\n";
  return text + "Next: " + next_of(flags) + "\n";
}

// A placement, which --cluster says it is, becomes a plan.
Result<int> import_plan(const Flags& flags, const ImportOptions& options) {
  if (flags.files.size() != 1)
    return invalid_input(fmt::format("{} files; a placement is one", flags.files.size()));
  const Cluster cluster = GRACE_TRY(parse_cluster(flags.cluster));
  std::vector<int> devices_per_node;
  for (int node = 0; node < cluster.num_nodes(); ++node)
    devices_per_node.push_back(cluster.devices_in(NodeId(node)));
  std::string model = options.model;
  if (model.empty()) model = std::filesystem::path(flags.files.front()).stem().string();
  const ImportedPlan imported = GRACE_TRY(
      import_placement(flags.files.front(),
                       {options.format, cluster.num_devices(), options.num_experts, options.decoder_layers},
                       std::move(model), devices_per_node));
  GRACE_TRY(write_plan(flags.out, imported.plan));
  if (flags.json) {
    print_json({{"out", flags.out},
                {"kind", "plan"},
                {"format", imported.format},
                {"layers", imported.plan.num_moe_layers()},
                {"experts", imported.plan.num_experts},
                {"devices", imported.plan.num_devices()},
                {"second_copies_left_out", imported.second_copies}});
    return 0;
  }
  print(fmt::format("{}: a plan of {} MoE layers of {} experts over {} devices, from {}\n", flags.out,
                    imported.plan.num_moe_layers(), imported.plan.num_experts, imported.plan.num_devices(),
                    imported.format));
  if (imported.second_copies > 0)
    print(fmt::format("{} copies beside a copy of the same expert are left out: they serve nothing more.\n",
                      imported.second_copies));
  print(fmt::format("Next: grace simulate --trace T --plan {} --cluster {}\n", flags.out, flags.cluster));
  return 0;
}

Result<int> import_recording(const Flags& flags) {
  ImportOptions options = GRACE_TRY(options_of(flags));
  if (!flags.cluster.empty()) return import_plan(flags, options);
  const std::vector<std::filesystem::path> files(flags.files.begin(), flags.files.end());
  Progress progress("import");
  const SignalGuard guard;
  options.progress = [&](std::int64_t done, std::int64_t total) {
    progress(done, total);
    return stop_signal == 0;
  };
  const Result<ImportSummary> summary = import_files(files, flags.out, options);
  if (!summary.ok() && stop_signal != 0) {
    std::fputs("grace: stopped; nothing was written\n", stderr);
    return 128 + static_cast<int>(stop_signal);
  }
  if (!summary.ok() && is_placement(flags.files.front()))
    return invalid_input(summary.error().message +
                         "; it may be a placement, which becomes a plan for a --cluster");
  if (!summary.ok()) return summary.error();
  if (flags.json) {
    print_json(json_of(flags, summary.value(), progress.seconds()));
  } else {
    print(text_of(flags, summary.value()));
  }
  return 0;
}

std::string known_formats() {
  std::string list;
  for (const Importer& importer : importers())
    list += fmt::format("\n  {:<14} {}", importer.name, importer.reads);
  return list;
}

void add_options(CLI::App& command, Flags& flags) {
  ImportOptions& options = flags.options;
  command.add_option("FILE", flags.files, "the recording: files of one run, or their folder")->required();
  command.add_option("--out", flags.out, "the trace or load profile to write")->required();
  command.add_option("--from", options.format, "the format, one of those below (default: detected)");
  command.add_option("--num-experts", options.num_experts,
                     "experts of a layer, where the source does not say");
  command.add_option("--top-k", options.experts_per_token,
                     "experts a token chooses, where the source does not say");
  command.add_option("--layers", flags.layers, "decoder layers of the MoE layers, such as 3-60 or 1,3,5");
  command.add_option("--dense-layers", options.dense_layers, "decoder layers before the first MoE layer");
  command.add_option("--same-tokens", options.same_tokens,
                     "consecutive ranks that recorded the same tokens (tensor parallel attention): one of "
                     "them counts (default 1)");
  command.add_option("--phase", flags.phase, "prefill (default) or decode, where the source does not say");
  command.add_option(
      "--cluster", flags.cluster,
      "the file is a placement, for this cluster: NODESxDEVICES, a preset or a cluster file; a plan "
      "is written");
  command.add_option("--model", options.model, "the model's name (default: the source's)");
  command.add_flag("--json", flags.json, "one JSON value");
}

}  // namespace

void add_import(CLI::App& app, Context& context) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "import", "Reads what another engine recorded, as a trace or, where it only counted, a load profile.");
  add_options(*command, *flags);
  command->footer(
      "Formats:" + known_formats() +
      "\nExamples:\n"
      "  grace import expert_distribution_recorder_1730000000.0_*.pt --out served.trace\n"
      "  grace import router_traces/ --num-experts 128 --out trained.trace\n"
      "  grace import answers.jsonl --from vllm --num-experts 64 --dense-layers 1 --out served.trace\n"
      "  grace import expert_statistic/ --out served.load.json\n"
      "  grace import location.json --cluster 2x8 --layers 3-60 --out plan.json");
  command->callback([flags, &context] { context.action = [flags] { return import_recording(*flags); }; });
}

}  // namespace grace::app
