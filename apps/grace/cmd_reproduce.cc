// grace reproduce: the published method's claims, measured here beside the published figures.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "context.h"
#include "grace/base/commas.h"
#include "grace/sizing/sizes.h"
#include "options.h"
#include "output.h"
#include "reproduce_tables.h"

namespace grace::app {
namespace {

struct Flags {
  std::vector<std::string> traces;
  std::string cluster = "2x2", shape, tables;
  int splits = 5, threads = 0;
  std::int64_t batch = 2048;
  std::uint64_t seed = 0;
  double effort = 0.2;
  OutputFlags output;
};

struct OfOneTrace {
  const char* name;
  Result<ReproducedTable> (*make)(const Subject& subject, const Measure& measure);
};
constexpr OfOneTrace kOfOneTrace[] = {{"configurations", &configurations_table},
                                      {"size-bound", &size_bound_table},
                                      {"busiest", &busiest_table},
                                      {"copy-what", &copy_what_table},
                                      {"copies", &copies_table}};
constexpr const char *kTransfer = "transfer", *kGrid = "grid";

std::vector<std::string> all_tables() {
  std::vector<std::string> names;
  for (const OfOneTrace& table : kOfOneTrace) names.emplace_back(table.name);
  names.insert(names.end(), {kTransfer, kGrid});
  return names;
}

Result<std::vector<std::string>> tables_of(const Flags& flags) {
  const std::vector<std::string> all = all_tables();
  if (flags.tables.empty()) return all;
  const std::vector<std::string> asked = split_at_commas(flags.tables);
  for (const std::string& name : asked)
    if (std::ranges::find(all, name) == all.end())
      return invalid_input(fmt::format("--table: '{}' is not one of {}", name, fmt::join(all, ", ")));
  if (asked.empty()) return invalid_input("--table: names none");
  if (std::ranges::find(asked, kTransfer) != asked.end() && flags.traces.size() < 2)
    return invalid_input(fmt::format("--table transfer: {} traces; a plan from one serving another needs 2",
                                     flags.traces.size()));
  return asked;
}

Status check_flags(const Flags& flags) {
  if (flags.splits < 1 || flags.splits > 1000)
    return invalid_input(fmt::format("--splits: {} is outside [1, 1000]", flags.splits));
  if (flags.batch < 1) return invalid_input(fmt::format("--batch: {} is less than 1", flags.batch));
  if (!(flags.effort > 0) || flags.effort > 1000)
    return invalid_input(fmt::format("--effort: {} is outside (0, 1000]", flags.effort));
  return check_output_flags(flags.output, "reproduce");
}

Result<std::vector<Subject>> subjects_of(const Flags& flags, const Measure& measure) {
  std::vector<Subject> subjects;
  for (const std::string& path : flags.traces) {
    Trace trace = GRACE_TRY(read_trace(path));
    if (trace.num_sequences() < 2)
      return invalid_input(
          fmt::format("{}: {} sequences; holding some out needs at least 2", path, trace.num_sequences()));
    const ModelShape shape = GRACE_TRY(shape_for(flags.shape, trace.model));
    GRACE_TRY(check_shape(shape, trace));
    subjects.push_back({std::filesystem::path(path).stem().string(), std::move(trace), sizes_of(shape)});
  }
  if (subjects.empty())
    subjects.push_back(GRACE_TRY(made_up_subject(flags.shape.empty() ? "olmoe" : flags.shape, measure)));
  return subjects;
}

std::string setting(std::span<const Subject> subjects, const Measure& measure) {
  std::string text;
  for (const Subject& subject : subjects)
    text += fmt::format("{}: {} tokens in {} sequences, {} MoE layers of {} experts, {} a token{}. ",
                        subject.name, subject.trace.num_tokens(), subject.trace.num_sequences(),
                        subject.trace.num_moe_layers(), subject.trace.num_experts,
                        subject.trace.experts_per_token,
                        subject.is_made_up ? "; no trace was given: " + subject.trace.source : "");
  return text +
         fmt::format(
             "Cluster {}, batches of {} tokens; {} splits by sequence, half of the sequences judge, mean ± "
             "sample deviation over the splits; r = 0.15 where nothing else is said; seed {}, effort {}. "
             "x: nodes entered a token, y: forwards inside nodes, idle: a device's mean wait for the slowest "
             "one's compute, load deviation: over devices, in units of their mean. Published figures: the "
             "mean "
             "of three models, or OLMoE / DeepSeek-V2-Lite / Qwen3-30B-A3B.",
             measure.cluster.name, measure.batch, measure.splits, measure.seed, measure.effort);
}

Result<std::vector<ReproducedTable>> make_tables(const Flags& flags, const std::vector<std::string>& names,
                                                 std::span<const Subject> subjects, const Measure& measure) {
  std::vector<ReproducedTable> tables;
  const auto is_asked = [&](const char* name) { return std::ranges::find(names, name) != names.end(); };
  for (const OfOneTrace& table : kOfOneTrace)
    for (const Subject& subject : subjects)
      if (is_asked(table.name)) tables.push_back(GRACE_TRY(table.make(subject, measure)));
  if (is_asked(kTransfer) && subjects.size() > 1) {
    Result<ReproducedTable> matrix = transfer_table(subjects, measure);
    // Traces of several models have no matrix; unless it was asked for, that is no reason to stop.
    if (matrix.ok() || !flags.tables.empty()) tables.push_back(GRACE_TRY(std::move(matrix)));
  }
  if (is_asked(kGrid)) tables.push_back(GRACE_TRY(grid_table(subjects, measure)));
  return tables;
}

Output output_of(const Flags& flags, std::vector<ReproducedTable> tables, std::span<const Subject> subjects,
                 const Measure& measure) {
  Output output;
  output.json = {{"tables", Json::array()},
                 {"seed", measure.seed},
                 {"options",
                  {{"traces", flags.traces},
                   {"cluster", measure.cluster.name},
                   {"splits", measure.splits},
                   {"batch", measure.batch},
                   {"effort", measure.effort},
                   {"r", 0.15}}}};
  for (ReproducedTable& table : tables) {
    for (Block& block : table.blocks) output.blocks.push_back(std::move(block));
    output.json["tables"].push_back(std::move(table.json));
  }
  output.notes = {setting(subjects, measure)};
  output.page.title = "The published method, measured again";
  output.page.summary = output.notes.front();
  return output;
}

Result<int> reproduce(const Flags& flags, const Context& context) {
  GRACE_TRY(check_flags(flags));
  const std::vector<std::string> names = GRACE_TRY(tables_of(flags));
  const Cluster cluster = GRACE_TRY(parse_cluster(flags.cluster));
  ThreadPool pool(GRACE_TRY(threads_for(flags.threads)));
  const Measure measure{cluster, flags.splits, flags.batch, flags.seed, flags.effort, pool};
  const std::vector<Subject> subjects = GRACE_TRY(subjects_of(flags, measure));
  std::vector<ReproducedTable> tables = GRACE_TRY(make_tables(flags, names, subjects, measure));
  GRACE_TRY(emit(flags.output, context, output_of(flags, std::move(tables), subjects, measure)));
  return 0;
}

}  // namespace

void add_reproduce(CLI::App& app, Context& context) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "reproduce",
      "The published method's claims, measured on held-out tokens beside the published figures.");
  command->add_option("--trace", flags->traces,
                      "a trace, or several; of one model they also serve each other (default: made up, in "
                      "the shape of --shape, or OLMoE's)");
  command->add_option("--cluster", flags->cluster, "NODESxDEVICES, a preset or a cluster file (default 2x2)");
  command->add_option("--shape", flags->shape,
                      "the model's sizes: a known name or a config.json (default: by the trace's model)");
  command->add_option("--table", flags->tables,
                      fmt::format("which, after commas: {} (default all)", fmt::join(all_tables(), ", ")));
  command->add_option("--splits", flags->splits, "ways to hold half of the sequences out (default 5)");
  command->add_option("--batch", flags->batch, "tokens that run together, over all devices (default 2048)");
  command->add_option("--effort", flags->effort, "of joint's search, relative to the default (default 0.2)");
  command->add_option("--seed", flags->seed, "seed of everything random (default 0)");
  command->add_option("--threads", flags->threads,
                      "threads (default: all cores); the result is the same for any number");
  add_output_flags(*command, flags->output);
  command->footer(
      "Examples:\n  grace reproduce --trace wiki.trace --trace math.trace --trace code.trace --cluster 2x2\n"
      "  grace reproduce --table size-bound,copies --json");
  command->callback(
      [flags, &context] { context.action = [flags, &context] { return reproduce(*flags, context); }; });
}

}  // namespace grace::app
