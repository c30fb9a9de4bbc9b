#include "bench_views.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <thread>

#include "bench_page.h"
#include "page.h"

namespace grace::app {
namespace {

// A figure of a phase or of the whole run. `critical`: also shown by phase in the table.
struct Figure {
  const char* key;
  const char* name;
  const char* unit;
  double scale;
  double (*get)(const PhaseSummary&);
  bool critical = false;
};
constexpr Figure kFigures[] = {
    {"moe_critical_path", "moe layers, critical path", "ms", 1e3,
     [](const PhaseSummary& s) { return s.critical_s; }, true},
    {"exchange", "exchange, critical path", "ms", 1e3, [](const PhaseSummary& s) { return s.exchange_s; },
     true},
    {"experts", "experts, critical path", "ms", 1e3, [](const PhaseSummary& s) { return s.experts_s; }, true},
    {"all_to_all", "all to all", "ms", 1e3, [](const PhaseSummary& s) { return s.all_to_all_s; }},
    {"moe_layers", "moe layers", "ms", 1e3, [](const PhaseSummary& s) { return s.moe_s; }},
    {"idle", "idle", "ms", 1e3, [](const PhaseSummary& s) { return s.idle_s; }},
    {"cross_node_bytes", "cross node bytes", "MB", 1e-6,
     [](const PhaseSummary& s) { return static_cast<double>(s.cross_node_bytes()); }},
    {"busiest_node_bytes", "busiest node's bytes", "MB", 1e-6,
     [](const PhaseSummary& s) { return static_cast<double>(s.busiest_node_bytes); }},
    {"intra_node_bytes", "intra node bytes", "MB", 1e-6,
     [](const PhaseSummary& s) { return static_cast<double>(s.intra_node_bytes()); }},
    {"load_deviation", "load deviation", "%", 100, [](const PhaseSummary& s) { return s.load_deviation; }},
};

struct PhaseName {
  const char* name;
  PhaseSummary RunSummary::*summary;
};
constexpr PhaseName kPhases[] = {{"prefill", &RunSummary::prefill}, {"decode", &RunSummary::decode}};

// A figure of the whole run alone. `of_layers`: only where the MoE layers are all there is.
struct RunFigure {
  const char* key;
  const char* name;
  const char* unit;
  double scale;
  double (*get)(const Round&);
  bool of_layers = false;
};
double per_second(std::int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}
constexpr RunFigure kRunFigures[] = {
    {"end_to_end_critical_path", "end to end, critical path", "ms", 1e3,
     [](const Round& r) { return r.sum.whole.critical_s; }, true},
    {"tokens_per_s_critical_path", "tokens/s, critical path", "1/s", 1,
     [](const Round& r) { return per_second(r.new_tokens, r.sum.whole.critical_s); }, true},
    {"end_to_end", "end to end", "ms", 1e3, [](const Round& r) { return r.prefill_s + r.decode_s; }},
    {"prefill", "prefill", "ms", 1e3, [](const Round& r) { return r.prefill_s; }},
    {"decode", "decode", "ms", 1e3, [](const Round& r) { return r.decode_s; }},
    {"tokens_per_s", "tokens/s", "1/s", 1,
     [](const Round& r) { return per_second(r.new_tokens, r.prefill_s + r.decode_s); }},
};

// One value of each round, in the figure's unit.
using Values = std::vector<double>;

Values values_of(const Measured& measured, const Figure& figure, PhaseSummary RunSummary::*phase) {
  Values values;
  for (const Round& round : measured.rounds) values.push_back(figure.get(round.sum.*phase) * figure.scale);
  return values;
}
Values values_of(const Measured& measured, const RunFigure& figure) {
  Values values;
  for (const Round& round : measured.rounds) values.push_back(figure.get(round) * figure.scale);
  return values;
}

double median(Values values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::string cell_of(const Values& values) {
  const auto [lowest, highest] = std::ranges::minmax(values);
  if (lowest == highest) return fmt::format("{:.2f}", lowest);
  return fmt::format("{:.1f} ({:.1f}..{:.1f})", median(values), lowest, highest);
}

// A figure's values for every strategy.
struct Row {
  std::string key, name, unit;
  std::vector<Values> of_contender;
};

Row row_of(const Measurements& measured, const Figure& figure, const PhaseName* phase) {
  Row row{figure.key, figure.name, figure.unit, {}};
  if (phase != nullptr) {
    row.key = fmt::format("{}_{}", phase->name, figure.key);
    row.name = fmt::format("{}: {}", phase->name, figure.name);
  }
  for (const Measured& one : measured.of_contender)
    row.of_contender.push_back(
        values_of(one, figure, phase != nullptr ? phase->summary : &RunSummary::whole));
  return row;
}
Row row_of(const Measurements& measured, const RunFigure& figure) {
  Row row{figure.key, figure.name, figure.unit, {}};
  for (const Measured& one : measured.of_contender) row.of_contender.push_back(values_of(one, figure));
  return row;
}

std::vector<Row> phase_rows(const Measurements& measured, bool only_critical) {
  std::vector<Row> rows;
  for (const PhaseName& phase : kPhases)
    for (const Figure& figure : kFigures)
      if (figure.critical || !only_critical) rows.push_back(row_of(measured, figure, &phase));
  return rows;
}

std::vector<Row> run_rows(const Measurements& measured, const Job& job) {
  std::vector<Row> rows;
  for (const RunFigure& figure : kRunFigures)
    if (!figure.of_layers || job.replay != nullptr) rows.push_back(row_of(measured, figure));
  return rows;
}

report::Table table_of(const Measurements& measured, const std::vector<Row>& rows) {
  report::Table table;
  table.columns = {""};
  for (const Measured& one : measured.of_contender) table.columns.push_back(one.strategy);
  for (const Row& row : rows) {
    auto& cells = table.rows.emplace_back(1, fmt::format("{} [{}]", row.name, row.unit));
    for (const Values& values : row.of_contender) cells.push_back(cell_of(values));
  }
  return table;
}

// "3 prompts differ, 2 of them at near-ties (margin within 2.50e-06 of the largest logit)".
std::string sentence_of(const TextDifference& difference, double bound) {
  return fmt::format("{} prompts differ, {} of them at near-ties (margin within {:.2e} of the largest logit)",
                     difference.prompts, difference.near_ties, bound);
}

std::string same_text_cell(const Measured& measured) {
  const TextDifference& difference = measured.difference;
  if (difference.prompts == 0) return "yes";
  if (measured.lossy) return fmt::format("lossy, {} differ", difference.prompts);
  if (difference.is_explained()) return fmt::format("{} near-ties", difference.near_ties);
  return fmt::format("{} differ, {} near-ties", difference.prompts, difference.near_ties);
}

report::Table main_table(const Measurements& measured, const Job& job) {
  std::vector<Row> rows = run_rows(measured, job);
  for (const Figure& figure : kFigures) rows.push_back(row_of(measured, figure, nullptr));
  for (Row& row : phase_rows(measured, true)) rows.push_back(std::move(row));
  report::Table table = table_of(measured, rows);
  std::vector<std::string> exchanges{"dispatch"}, same{"same text"};
  for (const Measured& one : measured.of_contender) {
    exchanges.emplace_back(dispatch_name(job, one.dispatch));
    same.push_back(same_text_cell(one));
  }
  table.rows.insert(table.rows.begin(), std::move(exchanges));
  table.rows.push_back(std::move(same));
  return table;
}

std::string options_line(const BenchFlags& flags, const Job& job) {
  return fmt::format(
      "{}; cluster {}, {}, {} results, {} on the wire, {} thread(s) a rank{}; {} prompts of {} tokens ({}), "
      "{} new; {} "
      "rounds, "
      "interleaved, median (lowest..highest);{} seed {}.",
      job.config.name, job.cluster.name, job.mpi ? "mpi" : "in_process", name_of(job.combine),
      name_of(job.wire), job.threads, flags.aligned ? ", aligned" : "", flags.batch, flags.prefill,
      job.replay != nullptr ? "the trace's routing"
      : flags.text.empty()  ? "random ids"
                            : "text",
      flags.decode, flags.rounds, flags.slots.empty() ? "" : fmt::format(" slots {};", flags.slots),
      flags.engine.seed);
}

std::vector<std::string> notes_of(const Measurements& measured, const BenchFlags& flags, const Job& job) {
  std::vector<std::string> notes{options_line(flags, job)};
  notes.push_back(fmt::format(
      "Critical path: in each step and layer the most processor time of any rank for gate, experts and "
      "packing, and each exchange from when the last rank begins it to when the last one ends it. All else "
      "is "
      "by the clock.{}",
      job.replay != nullptr ? " End to end it is the MoE layers, which are all there is."
                            : " Attention and head are not in it."));
  const bool shared = job.hosts.empty() && job.cluster.num_devices() * job.threads >
                                               static_cast<int>(std::thread::hardware_concurrency());
  if (shared)
    notes.push_back(fmt::format("The ranks share cores: times by the clock are no speed figures{}.",
                                flags.aligned
                                    ? ""
                                    : ", and without --aligned an exchange holds what others compute "
                                      "meanwhile"));
  if (std::ranges::any_of(measured.of_contender, [](const Measured& one) { return !one.last.one_clock; }))
    notes.push_back(
        "The ranks' clocks differ: one barrier's end is taken for the same moment on all of them.");
  for (const Measured& one : measured.of_contender) {
    if (one.lossy)
      notes.push_back(
          fmt::format("{} is lossy: its plan changes what the gate chooses, and {} prompts differ.",
                      one.strategy, one.difference.prompts));
    else if (one.difference.prompts > 0)
      notes.push_back(
          fmt::format("{}: {}.", one.strategy, sentence_of(one.difference, measured.near_tie_bound)));
  }
  return notes;
}

Json json_of(const Values& values, const std::string& unit) {
  const auto [lowest, highest] = std::ranges::minmax(values);
  return {{"unit", unit},
          {"median", median(values)},
          {"lowest", lowest},
          {"highest", highest},
          {"spread", highest - lowest}};
}

Json json_of(const Measurements& measured, const BenchFlags& flags, const Job& job) {
  std::vector<Row> rows = run_rows(measured, job);
  for (const Figure& figure : kFigures) rows.push_back(row_of(measured, figure, nullptr));
  std::ranges::move(phase_rows(measured, false), std::back_inserter(rows));
  Json list = Json::array();
  for (std::size_t c = 0; c < measured.of_contender.size(); ++c) {
    const Measured& one = measured.of_contender[c];
    Json entry = {{"strategy", one.strategy},
                  {"dispatch", dispatch_name(job, one.dispatch)},
                  {"lossy", one.lossy},
                  {"same_text", one.difference.prompts == 0},
                  {"differing_prompts", one.difference.prompts},
                  {"near_ties", one.difference.near_ties},
                  {"outputs_hash", one.outputs_hash}};
    Json rounds(one.rounds.size(), Json::object());
    for (const Row& row : rows) {
      entry[row.key] = json_of(row.of_contender[c], row.unit);
      for (std::size_t r = 0; r < one.rounds.size(); ++r) rounds[r][row.key] = row.of_contender[c][r];
    }
    entry["rounds"] = std::move(rounds);
    list.push_back(std::move(entry));
  }
  return {{"machine", machine_name()},
          {"options", options_line(flags, job)},
          {"aligned", flags.aligned},
          {"same_text", measured.is_same_text()},
          {"near_tie_bound", measured.near_tie_bound},
          {"strategies", list}};
}

report::BarChart chart(const Measurements& measured, const std::string& title, const std::string& unit) {
  report::BarChart bars{title, fmt::format("Medians, {}.", unit), {}, {}};
  for (const Measured& one : measured.of_contender) bars.labels.push_back(one.strategy);
  return bars;
}

report::Series series_of(const std::string& name, const Row& row) {
  report::Series series{name, {}};
  for (const Values& values : row.of_contender) series.values.push_back(median(values));
  return series;
}

// Prefill and decode side by side where a figure has both.
void add_pictures(const Measurements& measured, const Job& job, report::Page& page) {
  report::Section whole{"The whole run", "", {}}, phases{"Prefill and decode", "", {}},
      timelines{"One layer", "What each rank did, and what it waited for.", {}};
  for (const Row& row : run_rows(measured, job)) {
    report::BarChart bars = chart(measured, row.name, row.unit);
    bars.series.push_back(series_of(row.name, row));
    whole.pictures.emplace_back(std::move(bars));
  }
  for (const Figure& figure : kFigures) {
    report::BarChart bars = chart(measured, figure.name, figure.unit);
    for (const PhaseName& phase : kPhases)
      bars.series.push_back(series_of(phase.name, row_of(measured, figure, &phase)));
    phases.pictures.emplace_back(std::move(bars));
  }
  for (const Measured& one : measured.of_contender)
    timelines.pictures.emplace_back(layer_timeline(one.last, 0, 0));
  for (report::Section* section : {&whole, &phases, &timelines}) page.sections.push_back(std::move(*section));
}

}  // namespace

Output output_of(const Measurements& measured, const BenchFlags& flags, const Job& job) {
  Output output;
  output.blocks.push_back({main_table(measured, job), {}});
  output.notes = notes_of(measured, flags, job);
  output.page.title = fmt::format("{} on {}", job.config.name, job.cluster.name);
  for (const std::string& note : output.notes)
    output.page.summary += (output.page.summary.empty() ? "" : "\n") + note;
  output.page.summary += fmt::format("\nMachine: {}.", machine_name());
  if (!flags.output.html.empty()) {
    report::Table phases = table_of(measured, phase_rows(measured, false));
    phases.title = "Prefill and decode apart";
    output.page.sections.push_back({"By phase", "", {std::move(phases)}});
    add_pictures(measured, job, output.page);
  }
  output.json = json_of(measured, flags, job);
  return output;
}

}  // namespace grace::app
