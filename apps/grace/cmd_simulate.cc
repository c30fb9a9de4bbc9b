// grace simulate: a trace through a plan on a cluster, in seconds.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>

#include "context.h"
#include "grace/files/mapped_file.h"
#include "grace/sizing/model_price.h"
#include "grace/sizing/sizes.h"
#include "load_commands.h"
#include "progress.h"
#include "simulation_views.h"

namespace grace::app {
namespace {

struct Flags {
  std::string trace, plan, cluster, dispatch = "two_stage", combine = "reduced", shape, timeline;
  std::string wire = "bf16", weights = "bf16";
  int batch = 0, prefill = 0, threads = 0;
  std::optional<int> decode;
  bool exact = false, json = false;
};

// What a viewer opens at once, and what a page draws smoothly.
constexpr std::size_t kMaxTraceSpans = 100'000, kMaxPageSpans = 5'000;

Result<double> bytes_per_weight(const std::string& type) {
  if (type == "bf16") return 2.0;
  if (type == "f32") return 4.0;
  return invalid_input(fmt::format("--weights: '{}' is neither bf16 nor f32", type));
}

Result<Workload> workload_of(const Flags& flags) {
  const bool has_prefill = flags.prefill != 0;
  if (!has_prefill && flags.decode) return invalid_input("--decode: goes with --prefill");
  if (!has_prefill) return Workload{};
  if (flags.prefill < 0) return invalid_input(fmt::format("--prefill: {} is less than 1", flags.prefill));
  if (flags.batch == 0) return invalid_input("--prefill: goes with --batch, the number of prompts");
  const int decode = flags.decode.value_or(1);
  if (decode < 1) return invalid_input(fmt::format("--decode: {} is less than 1", decode));
  return Workload{flags.prefill, decode};
}

Result<Plan> plan_for(const Flags& flags, const Trace& trace, const Cluster& cluster) {
  if (flags.plan.empty()) return vanilla_plan(trace.model, trace.num_experts, trace.decoder_layers, cluster);
  Plan plan = GRACE_TRY(read_plan(flags.plan));
  GRACE_TRY(check_fits(plan, trace.num_experts, trace.decoder_layers, flags.trace));
  const std::vector<std::string> faults = violations(plan, cluster);
  if (!faults.empty()) return invalid_input(fmt::format("{}: {}", flags.plan, faults.front()));
  return plan;
}

Status write_timeline(const std::string& path, const Simulation& simulation, const ModelPrice& model,
                      const SimulationSetup& setup) {
  if (!path.ends_with(".html"))
    return write_text_atomically(
        path, report::chrome_trace(timeline_of(simulation, model, setup, kMaxTraceSpans, true)));
  report::Page page;
  page.title = fmt::format("{} on {}, simulated", setup.plan, setup.cluster);
  page.sections = {
      {"Figures",
       "",
       {summary_table(simulation, setup), layer_table(simulation, setup), device_table(simulation)}},
      {"Timeline", "", {timeline_of(simulation, model, setup, kMaxPageSpans, false)}}};
  return write_text_atomically(path, report::html(page));
}

Result<int> simulate_trace(const Flags& flags) {
  const Cluster cluster = GRACE_TRY(parse_cluster(flags.cluster));
  const Dispatch dispatch = GRACE_TRY(parse_dispatch(flags.dispatch));
  if (flags.batch < 0) return invalid_input(fmt::format("--batch: {} is less than 1", flags.batch));
  const Workload workload = GRACE_TRY(workload_of(flags));
  if (is_load_profile(flags.trace)) {
    if (!flags.timeline.empty() || flags.exact || flags.prefill != 0)
      return invalid_input(
          "--timeline, --exact, --prefill: need tokens; a load profile says how often experts were chosen");
    const LoadProfile loads = GRACE_TRY(read_load_profile(flags.trace));
    return simulate_loads(loads, GRACE_TRY(plan_for(flags, without_tokens(loads), cluster)), cluster,
                          flags.json);
  }
  const Trace trace = GRACE_TRY(read_trace(flags.trace));
  const ModelShape shape = GRACE_TRY(shape_for(flags.shape, trace.model));
  GRACE_TRY(check_shape(shape, trace));
  const Plan plan = GRACE_TRY(plan_for(flags, trace, cluster));

  SimulateOptions options;
  options.batch = flags.batch;
  options.dispatch = dispatch;
  options.combine = GRACE_TRY(parse_combine(flags.combine));
  options.workload = workload;
  options.sizes = sizes_of(shape);
  options.sizes.bytes_per_value = static_cast<double>(bytes_per_value(GRACE_TRY(parse_wire(flags.wire))));
  options.sizes.bytes_per_weight = GRACE_TRY(bytes_per_weight(flags.weights));
  options.model = price_of(shape, trace);
  ThreadPool pool(GRACE_TRY(threads_for(flags.threads)));
  Result<Simulation> simulated = [&] {
    Progress progress("simulate");
    options.progress = [&](std::int64_t done, std::int64_t total) { progress(done, total); };
    return simulate(trace, plan, cluster, options, pool);
  }();
  const Simulation simulation = GRACE_TRY(std::move(simulated));

  std::optional<Replay> wire;
  if (flags.exact) {
    const auto bytes_per_vector = static_cast<std::int64_t>(shape.hidden) * 4;  // f32
    wire = GRACE_TRY(replay(trace, plan, cluster,
                            {flags.batch, dispatch, Combine::kExact, bytes_per_vector, workload}, pool));
  }

  const SimulationSetup setup{plan.strategy,
                              shape.name,
                              cluster.name,
                              std::string(name_of(dispatch)),
                              std::string(name_of(options.combine)),
                              flags.batch,
                              workload,
                              trace.num_sequences(),
                              trace.decoder_layers,
                              simulated_layers(shape, trace),
                              static_cast<int>(shape.moe_layers.size()) - trace.num_moe_layers(),
                              options.sizes};
  if (!flags.timeline.empty()) GRACE_TRY(write_timeline(flags.timeline, simulation, options.model, setup));
  if (flags.json) {
    Json json = json_of(simulation, setup);
    if (wire) json["exact_bytes"] = json_of(*wire);
    print_json(json);
    return 0;
  }
  print(report::terminal_table(layer_table(simulation, setup)) + "\n" +
        report::terminal_table(device_table(simulation)) + "\n" +
        report::terminal_table(summary_table(simulation, setup)));
  if (wire) print("\n" + report::terminal_table(wire_table(*wire)));
  if (setup.left_out > 0)
    print(fmt::format("{} of the model's MoE layers are not in the trace and left out.\n", setup.left_out));
  if (!flags.timeline.empty()) print(fmt::format("{}: written\n", flags.timeline));
  return 0;
}

}  // namespace

void add_simulate(CLI::App& app, Context& context) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "simulate", "Replays a trace through a plan on a cluster: times, traffic, idle, end-to-end estimate.");
  command->add_option("--trace", flags->trace, "a trace, or a load profile: loads alone then")->required();
  command->add_option("--plan", flags->plan, "a plan file (default: vanilla expert parallelism)");
  command->add_option("--cluster", flags->cluster, "NODESxDEVICES, a preset or a cluster file")->required();
  command->add_option("--dispatch", flags->dispatch,
                      "two_stage (default), per_device, flat, padded or allgather");
  command->add_option("--combine", flags->combine,
                      "reduced (default): a result for each vector sent; exact: one for each expert chosen");
  command->add_option("--wire", flags->wire, "type of what travels: bf16 (default) or f32");
  command->add_option("--weights", flags->weights, "type of the experts' weights: bf16 (default) or f32");
  command->add_option("--shape", flags->shape,
                      "the model's sizes: a known name or a config.json (default: by the trace's model)");
  command->add_option("--batch", flags->batch,
                      "sequences that run together, over all devices (default: all of them)");
  command->add_option(
      "--prefill", flags->prefill,
      "in place of the trace's own lengths: --batch prompts of so many tokens, as grace bench");
  command->add_option("--decode", flags->decode, "new tokens of each such prompt (default 1)");
  command->add_flag("--exact", flags->exact, "also the bytes that grace run counts with exact results");
  command->add_option("--timeline", flags->timeline,
                      "also write the first passes for Perfetto, or as a page where FILE ends in .html");
  command->add_option("--threads", flags->threads,
                      "threads (default: all cores); the result is the same for any number");
  command->add_flag("--json", flags->json, "one JSON value");
  command->footer(
      "Example:\n  grace simulate --trace out/en.trace --plan out/plan.json --cluster 3090:2x2 --batch 128");
  command->callback([flags, &context] { context.action = [flags] { return simulate_trace(*flags); }; });
}

}  // namespace grace::app
