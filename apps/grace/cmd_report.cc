// grace report: one self-contained page out of a trace, a plan and, where there is one, a run record.
#include <fmt/format.h>

#include <memory>
#include <thread>

#include "context.h"
#include "grace/files/mapped_file.h"
#include "options.h"
#include "page.h"
#include "run_summary.h"

namespace grace::app {
namespace {

struct Flags {
  std::string trace, plan, run, html, timeline, dispatch = "per_device";
  bool json = false;
};

report::Table run_table(const RunRecord& record) {
  const RunSummary sum = summarise(record);
  report::Table table{
      fmt::format("Run: {} on {}, {}, {}, {} results{}", record.strategy, record.cluster, record.transport,
                  record.dispatch, record.combine, record.aligned ? ", aligned" : ""),
      {"", "whole", "prefill", "decode"},
      {}};
  const auto row = [&](const char* name, const auto& text) {
    table.rows.push_back({name, text(sum.whole), text(sum.prefill), text(sum.decode)});
  };
  const auto seconds = [&](const char* name, double PhaseSummary::*figure) {
    row(name, [&](const PhaseSummary& phase) { return fmt::format("{:.6f} s", phase.*figure); });
  };
  table.rows.push_back({"prompts", std::to_string(record.prompts), "", ""});
  table.rows.push_back({"new tokens", std::to_string(record.new_tokens), "", ""});
  row("bytes across nodes", [](const PhaseSummary& p) { return std::to_string(p.cross_node_bytes()); });
  row("bytes across nodes, busiest node's",
      [](const PhaseSummary& p) { return std::to_string(p.busiest_node_bytes); });
  row("bytes inside nodes", [](const PhaseSummary& p) { return std::to_string(p.intra_node_bytes()); });
  row("load deviation",
      [](const PhaseSummary& p) { return fmt::format("{:.1f} %", 100 * p.load_deviation); });
  seconds("MoE layers, critical path", &PhaseSummary::critical_s);
  seconds("  exchange", &PhaseSummary::exchange_s);
  seconds("  experts", &PhaseSummary::experts_s);
  seconds("MoE layers by the clock", &PhaseSummary::moe_s);
  seconds("  all-to-all", &PhaseSummary::all_to_all_s);
  seconds("  idle", &PhaseSummary::idle_s);
  table.rows.push_back({"wall time", fmt::format("{:.6f} s", record.wall_s()),
                        fmt::format("{:.6f} s", record.prefill_s), fmt::format("{:.6f} s", record.decode_s)});
  return table;
}

Json json_of(const PhaseSummary& phase) {
  return {{"cross_node_bytes", phase.cross_node_bytes()},
          {"busiest_node_bytes", phase.busiest_node_bytes},
          {"intra_node_bytes", phase.intra_node_bytes()},
          {"load_deviation", phase.load_deviation},
          {"critical_s", phase.critical_s},
          {"exchange_s", phase.exchange_s},
          {"experts_s", phase.experts_s},
          {"moe_s", phase.moe_s},
          {"all_to_all_s", phase.all_to_all_s},
          {"idle_s", phase.idle_s}};
}

Json json_of(const RunSummary& sum) {
  return {{"whole", json_of(sum.whole)}, {"prefill", json_of(sum.prefill)}, {"decode", json_of(sum.decode)}};
}

Result<int> report(const Flags& flags) {
  const Trace trace = GRACE_TRY(read_trace(flags.trace));
  const Plan plan = GRACE_TRY(read_plan(flags.plan));
  const Dispatch dispatch = GRACE_TRY(parse_dispatch(flags.dispatch));
  GRACE_TRY(check_fits(plan, trace.num_experts, trace.decoder_layers, flags.trace));
  const Cluster cluster = GRACE_TRY(cluster_of(plan));
  ThreadPool pool(static_cast<int>(std::max(1U, std::thread::hardware_concurrency())));
  const std::vector<LayerStats> stats = count_layers(trace, pool);
  report::Page page;
  page.title = fmt::format("{} for {}", plan.strategy, plan.model);
  page.summary = fmt::format("{} tokens of {} in {} sequences; {}.", trace.num_tokens(), trace.source,
                             trace.num_sequences(), cluster.name);
  page.tables.push_back(table_of(plan, figures_of(plan, stats, 0)));
  GRACE_TRY(add_plan_pictures(page, trace, plan, cluster, dispatch, stats));
  Json json = {{"html", flags.html}};
  if (!flags.run.empty()) {
    const RunRecord record = GRACE_TRY(read_record(flags.run));
    page.tables.push_back(run_table(record));
    json["run"] = json_of(summarise(record));
    page.timelines.push_back(layer_timeline(record, 0, 0));
    if (!flags.timeline.empty())
      GRACE_TRY(write_text_atomically(flags.timeline, report::chrome_trace(page.timelines.back())));
  } else if (!flags.timeline.empty()) {
    return invalid_input("--timeline needs --run");
  }
  GRACE_TRY(write_text_atomically(flags.html, report::html(page)));
  if (flags.json)
    print_json(json);
  else
    print(fmt::format("{}: written\n", flags.html));
  return 0;
}

}  // namespace

void add_report(CLI::App& app, Context& context) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "report", "One self-contained HTML page: loads, affinity, who holds what, traffic, timeline.");
  command->add_option("--trace", flags->trace, "a trace")->required();
  command->add_option("--plan", flags->plan, "a plan for it")->required();
  command->add_option("--run", flags->run, "a run record (grace run --record)");
  command->add_option("--html", flags->html, "the page")->required();
  command->add_option("--timeline", flags->timeline, "also write the timeline for Perfetto (needs --run)");
  command->add_option("--dispatch", flags->dispatch,
                      "flat, per_device (default) or two_stage: what traffic is counted for");
  command->add_flag("--json", flags->json, "one JSON value");
  command->footer(
      "Example:\n  grace report --trace out/en.trace --plan out/plan.json --html out/report.html");
  command->callback([flags, &context] { context.action = [flags] { return report(*flags); }; });
}

}  // namespace grace::app
