// grace export: a plan in, the file that another engine starts from out.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>

#include "context.h"
#include "grace/files/mapped_file.h"
#include "grace/interop/exporter.h"
#include "grace/planner/judge.h"
#include "grace/planner/loads.h"
#include "grace/report/report.h"
#include "load_commands.h"
#include "options.h"

namespace grace::app {
namespace {

struct Flags {
  std::string plan, to, out, before, trace, cluster;
  int slots = 0, threads = 0;
  ExportOptions options;
  bool verify = false, json = false;
};

// What is known of the tokens that the plan is to serve.
struct Known {
  std::optional<Trace> trace;
  std::optional<LoadProfile> loads;  // the trace's, or a load profile's
};

// How evenly, and with a trace how far.
struct Judged {
  std::string name;
  LoadSummary loads;
  std::optional<Figures> figures;
};

Result<Known> read_known(const Flags& flags, const Plan& plan) {
  Known known;
  if (flags.trace.empty()) return known;
  if (is_load_profile(flags.trace)) {
    known.loads = GRACE_TRY(read_load_profile(flags.trace));
  } else {
    known.trace = GRACE_TRY(read_trace(flags.trace));
    known.loads = load_profile_of(*known.trace);
  }
  GRACE_TRY(check_fits(plan, known.loads->num_experts, known.loads->decoder_layers, flags.trace));
  return known;
}

PlacementOptions placement_options(const Flags& flags, const Plan& plan) {
  return {flags.to, plan.num_devices(), plan.num_experts, plan.decoder_layers, flags.options.mtp_layers};
}

// The file's own copies against the plan's: each of the plan's is there, and what more there is was added.
struct Verified {
  std::int64_t copies = 0;  // of the plan, found in the file
  std::int64_t added = 0;   // in the file beyond the plan's
  SlotMap slots;
};
Result<Verified> read_back(const Flags& flags, const Plan& plan, const EvenPlan& even) {
  Verified verified;
  verified.slots = GRACE_TRY(read_placement(flags.out, placement_options(flags, plan)));
  for (std::size_t m = 0; m < plan.layers.size(); ++m)
    for (int d = 0; d < plan.num_devices(); ++d) {
      const auto slots = verified.slots.slots_of(m, DeviceId(d));
      for (const ExpertId e : plan.layers[m].experts_on(DeviceId(d))) {
        if (std::ranges::find(slots, e.value) == slots.end())
          return internal_error(
              fmt::format("{}: layer {}: expert {} is not on device {}, where the plan has it", flags.out, m,
                          e.value, d));
        ++verified.copies;
      }
      verified.added += std::ssize(slots);
    }
  verified.added -= verified.copies;
  if (verified.added != even.padding.added)
    return internal_error(fmt::format("{}: {} copies beyond the plan's, must be {}", flags.out,
                                      verified.added, even.padding.added));
  return verified;
}

Result<Judged> judged(std::string name, const Plan& plan, const Known& known, const Cluster& cluster,
                      ThreadPool& pool) {
  const std::vector<LoadFigures> loads = GRACE_TRY(judge_loads(plan, *known.loads));
  Judged one{std::move(name), mean_of(loads), {}};
  if (!known.trace) return one;
  std::vector<int> sequences(static_cast<std::size_t>(known.trace->num_sequences()));
  std::iota(sequences.begin(), sequences.end(), 0);
  const JudgeTokens tokens = judge_tokens(*known.trace, sequences, cluster.num_devices(), 0);
  one.figures = mean_of(GRACE_TRY(judge(plan, *known.trace, tokens, cluster, {}, pool)));
  return one;
}

// The plan, the file with the plan's routing, and the file as near as our policies come to the engine's own
// choice among copies.
Result<std::vector<Judged>> judge_all(const Flags& flags, const Plan& plan, const SlotMap& slots,
                                      const Known& known) {
  const Exporter& exporter = *GRACE_TRY(find_exporter(flags.to));
  const Cluster cluster =
      flags.cluster.empty() ? GRACE_TRY(cluster_of(plan)) : GRACE_TRY(parse_cluster(flags.cluster));
  ThreadPool pool(GRACE_TRY(threads_for(flags.threads)));
  std::vector<Judged> all;
  all.push_back(GRACE_TRY(judged("the plan, routed by " + plan.routing, plan, known, cluster, pool)));
  Plan file = plan_of(slots, plan.model, plan.devices_per_node);
  predict_equal_shares(known.loads->loads, file);
  file.routing = plan.routing;
  for (std::size_t m = 0; m < file.layers.size(); ++m) file.layers[m].cover = plan.layers[m].cover;
  all.push_back(GRACE_TRY(judged("the file, routed by " + plan.routing, file, known, cluster, pool)));
  file.routing = exporter.nearest_routing;
  for (LayerPlan& layer : file.layers) layer.predicted_load.assign(layer.predicted_load.size(), 1);
  all.push_back(GRACE_TRY(judged(fmt::format("the file as {} chooses copies, nearest {}, equal weights",
                                             flags.to, exporter.nearest_routing),
                                 file, known, cluster, pool)));
  return all;
}

report::Table table_of(const std::vector<Judged>& all) {
  report::Table table{"Judged on the trace, means over layers",
                      {"", "fullest", "copies", "load shared equally: max/mean"},
                      {}};
  const bool has_figures = all.front().figures.has_value();
  if (has_figures)
    for (const char* title : {"max/mean", "remote nodes", "devices", "judge-slow"})
      table.columns.emplace_back(title);
  for (const Judged& one : all) {
    auto& row = table.rows.emplace_back(std::vector<std::string>{
        one.name, fmt::format("{:.2f}", one.loads.fullest), fmt::format("{:.1f}", one.loads.replicas),
        fmt::format("{:.3f}", one.loads.max_over_mean)});
    if (!has_figures) continue;
    row.push_back(fmt::format("{:.3f}", one.figures->load_max_over_mean));
    row.push_back(fmt::format("{:.3f}", one.figures->remote_nodes_per_token));
    row.push_back(fmt::format("{:.2f}", one.figures->devices_per_token));
    row.push_back(fmt::format("{:.2f}", one.figures->judge(kSlowYardstick)));
  }
  return table;
}

Json json_of(const std::vector<Judged>& all) {
  Json list = Json::array();
  for (const Judged& one : all) {
    Json json = {{"name", one.name},
                 {"slots_per_device_max", one.loads.fullest},
                 {"copies_per_layer", one.loads.replicas},
                 {"shared_load_max_over_mean", one.loads.max_over_mean}};
    if (one.figures) {
      json["load_max_over_mean"] = one.figures->load_max_over_mean;
      json["remote_nodes_per_token"] = one.figures->remote_nodes_per_token;
      json["devices_per_token"] = one.figures->devices_per_token;
      json["judge_slow"] = one.figures->judge(kSlowYardstick);
    }
    list.push_back(std::move(json));
  }
  return list;
}

std::string price_of(const Padding& padding) {
  if (padding.added == 0)
    return fmt::format("{} slots on every device, as the plan has them: nothing was added.",
                       padding.slots_per_device);
  std::string words = fmt::format(
      "{} slots on every device: the engine wants as many everywhere, so {} copies were added over all "
      "layers, "
      "of the experts with most load; {:+.1f} % memory for experts.",
      padding.slots_per_device, padding.added, 100 * (padding.memory_factor - 1));
  if (padding.empty > 0)
    words += fmt::format(" {} of them repeat an expert of their own device, which holds all there are.",
                         padding.empty);
  return words;
}

void print_all(const Flags& flags, const EvenPlan& even, const Exported& exported,
               const std::optional<Verified>& verified, const std::vector<Judged>& figures) {
  print(price_of(even.padding) + "\n\nStart with:\n");
  for (const std::string& line : exported.start_with) print("  " + line + "\n");
  print("\n");
  for (const std::string& note : exported.notes) print(note + "\n");
  if (verified)
    print(fmt::format("\nRead back: the plan's {} copies are where it has them, and {} more.\n",
                      verified->copies, verified->added));
  if (!figures.empty()) print("\n" + report::terminal_table(table_of(figures)));
  print(fmt::format("\n{}: written\n", flags.out));
}

Json json_of(const Flags& flags, const EvenPlan& even, const Exported& exported,
             const std::optional<Verified>& verified, const std::vector<Judged>& figures) {
  const SlotMap& slots = even.slots;
  Json json = {{"plan", flags.plan},
               {"to", flags.to},
               {"out", flags.out},
               {"devices", slots.num_devices},
               {"slots_per_device", even.padding.slots_per_device},
               {"redundant_experts", slots.num_slots() - slots.num_experts},
               {"padding",
                {{"copies_added", even.padding.added},
                 {"repeated", even.padding.empty},
                 {"memory_factor", even.padding.memory_factor}}},
               {"start_with", exported.start_with},
               {"notes", exported.notes}};
  if (verified) json["verified"] = {{"copies", verified->copies}, {"added", verified->added}};
  if (!figures.empty()) json["figures"] = json_of(figures);
  return json;
}

Result<int> export_file(const Flags& flags) {
  const Plan plan = GRACE_TRY(read_plan(flags.plan));
  const Known known = GRACE_TRY(read_known(flags, plan));
  std::optional<SlotMap> before;
  if (!flags.before.empty()) before = GRACE_TRY(read_placement(flags.before, placement_options(flags, plan)));
  ExportRequest request{flags.to, flags.out, flags.slots, {}, before ? &*before : nullptr, flags.options};
  if (known.loads) request.loads = known.loads->loads;
  const ExportedPlan written = GRACE_TRY(export_plan(plan, request));
  const auto& [even, exported] = written;
  std::optional<Verified> verified;
  std::vector<Judged> figures;
  if (flags.verify) {
    verified = GRACE_TRY(read_back(flags, plan, even));
    if (known.loads) figures = GRACE_TRY(judge_all(flags, plan, verified->slots, known));
  }
  if (flags.json) {
    print_json(json_of(flags, even, exported, verified, figures));
  } else {
    print_all(flags, even, exported, verified, figures);
  }
  return 0;
}

std::string formats() {
  std::string list;
  for (const Exporter& one : exporters())
    if (one.write != nullptr) list += fmt::format("\n  {:<14} {}", one.name, one.writes);
  return list;
}

}  // namespace

void add_export(CLI::App& app, Context& context) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "export", "Writes a plan as the file another engine starts from, and says with which flags.");
  command->add_option("--plan", flags->plan, "a plan file")->required();
  command->add_option("--to", flags->to, "the engine, one of those below")->required();
  command->add_option("--out", flags->out, "the file to write")->required();
  command->add_option(
      "--slots-per-device", flags->slots,
      "slots on every device (default: what the plan's fullest holds); spare ones take copies of the "
      "experts with most load");
  command->add_option("--decoder-layers", flags->options.num_decoder_layers,
                      "decoder layers of the model, dense ones too (default: up to the last MoE layer)");
  command->add_option("--mtp-layers", flags->options.mtp_layers,
                      "multi-token prediction layers behind the last, laid out in default order (default 0)");
  command->add_option(
      "--before", flags->before,
      "the placement that runs now, in the same format: experts that stay on a device keep their slot");
  command->add_option("--trace", flags->trace,
                      "a trace or load profile: what spare slots are filled by, and what --verify judges");
  command->add_option("--cluster", flags->cluster,
                      "with --trace: a preset or a cluster file (default: the plan's shape)");
  command->add_flag("--verify", flags->verify,
                    "read the file back, and hold it against the plan copy by copy; with --trace judge both");
  command->add_option("--threads", flags->threads, "threads (default: all cores)");
  command->add_flag("--json", flags->json, "one JSON value");
  command->footer(
      "Engines:" + formats() +
      "\nExamples:\n"
      "  grace export --plan out/plan.json --to sglang --out out/location.json --decoder-layers 61\n"
      "  grace export --plan out/plan.json --to tensorrt-llm --out out/eplb.yaml --verify --trace "
      "out/en.trace");
  command->callback([flags, &context] { context.action = [flags] { return export_file(*flags); }; });
}

}  // namespace grace::app
