// grace simulate: a trace through a plan on a cluster, in seconds.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>

#include "context.h"
#include "grace/files/mapped_file.h"
#include "model_price.h"
#include "progress.h"
#include "shape_option.h"
#include "simulation_views.h"

namespace grace::app {
namespace {

struct Flags {
  std::string trace, plan, cluster, dispatch = "two_stage", shape, timeline;
  int batch = 0, threads = 0;
  bool exact = false, json = false;
};

// What a viewer opens at once, and what a page draws smoothly.
constexpr std::size_t kMaxTraceSpans = 100'000, kMaxPageSpans = 5'000;

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
  page.tables = {summary_table(simulation, setup), layer_table(simulation, setup), device_table(simulation)};
  page.timelines.push_back(timeline_of(simulation, model, setup, kMaxPageSpans, false));
  return write_text_atomically(path, report::html(page));
}

Result<int> simulate_trace(const Flags& flags) {
  const Cluster cluster = GRACE_TRY(parse_cluster(flags.cluster));
  const Dispatch dispatch = GRACE_TRY(parse_dispatch(flags.dispatch));
  if (flags.threads < 0 || flags.threads > 1024)
    return invalid_input(fmt::format("--threads: {} is outside [1, 1024]", flags.threads));
  if (flags.batch < 0) return invalid_input(fmt::format("--batch: {} is less than 1", flags.batch));
  const Trace trace = GRACE_TRY(read_trace(flags.trace));
  const ModelShape shape = GRACE_TRY(shape_for(flags.shape, trace.model));
  GRACE_TRY(check_shape(shape, trace));
  const Plan plan = GRACE_TRY(plan_for(flags, trace, cluster));

  SimulateOptions options;
  options.batch = flags.batch;
  options.dispatch = dispatch;
  options.sizes = sizes_of(shape);
  options.model = price_of(shape, trace);
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  ThreadPool pool(flags.threads > 0 ? flags.threads : cores);
  Result<Simulation> simulated = [&] {
    Progress progress("simulate");
    options.progress = [&](std::int64_t done, std::int64_t total) { progress(done, total); };
    return simulate(trace, plan, cluster, options, pool);
  }();
  const Simulation simulation = GRACE_TRY(std::move(simulated));

  std::optional<Replay> wire;
  if (flags.exact) {
    const auto bytes_per_vector = static_cast<std::int64_t>(shape.hidden) * 4;  // f32
    wire = GRACE_TRY(
        replay(trace, plan, cluster, {flags.batch, dispatch, Combine::kExact, bytes_per_vector}, pool));
  }

  const SimulationSetup setup{plan.strategy,
                              shape.name,
                              cluster.name,
                              std::string(name_of(dispatch)),
                              flags.batch,
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
  command->add_option("--trace", flags->trace, "a trace")->required();
  command->add_option("--plan", flags->plan, "a plan file (default: vanilla expert parallelism)");
  command->add_option("--cluster", flags->cluster, "NODESxDEVICES, a preset or a cluster file")->required();
  command->add_option("--dispatch", flags->dispatch, "two_stage (default), per_device or flat");
  command->add_option("--shape", flags->shape,
                      "the model's sizes: a known name or a config.json (default: by the trace's model)");
  command->add_option("--batch", flags->batch,
                      "sequences that run together, over all devices (default: all of them)");
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
