// grace report from a load profile: what loads say of placements, and in words what they do not.
#include <fmt/format.h>

#include <algorithm>

#include "bench_page.h"
#include "compare_views.h"
#include "grace/base/commas.h"
#include "grace/files/mapped_file.h"
#include "load_commands.h"
#include "options.h"
#include "page.h"

namespace grace::app {
namespace {

constexpr const char* kSource =
    "A load profile: a source that counted, and did not keep what each token chose.";
constexpr const char* kUnknown =
    "Which experts a token chooses together, and in which order tokens came, is not in a load profile. So "
    "there "
    "is nothing here of affinity, of remote nodes, of traffic between devices, of times, of drift from one "
    "text "
    "to another, nor of what could not be beaten: that is left out, not zero. A plan is judged on the very "
    "loads "
    "it was made from. A recording of each token (docs/formats) says all of it.";

// The recommended row, or where that is the default placement the best of the others.
const LoadRow& drawn_row(const LoadComparison& made) {
  const LoadRow& chosen = made.rows[made.recommended];
  if (chosen.name != "vanilla") return chosen;
  const LoadRow* best = nullptr;
  for (const LoadRow& row : made.rows)
    if (row.name != "vanilla" && (best == nullptr || row.figures.max_over_mean < best->figures.max_over_mean))
      best = &row;
  return best == nullptr ? chosen : *best;
}

Result<Plan> plan_of(const LoadRow& row, const LoadProfile& loads, const Cluster& cluster,
                     const LoadsReport& asked, ThreadPool& pool) {
  PlanOptions options;
  options.seed = asked.seed;
  options.strategy = row.name;
  if (!row.slots.empty() && !asked.slots.empty())
    for (const SlotsSpec& spec : GRACE_TRY(parse_slots(asked.slots)))
      if (spec.name() == row.slots && spec.slots > 0) options.slots = {spec.slots};
  return std::move(GRACE_TRY(make_plan(loads, cluster, options, pool)).plan);
}

report::Facts provenance_of(const LoadProfile& loads, const LoadsReport& asked, const Plan& plan,
                            const Context& context) {
  report::Facts facts{"", {{"program", "grace " GRACE_VERSION}, {"machine", machine_name()}}};
  std::string line = "grace";
  for (int i = 1; i < context.argc; ++i) line += fmt::format(" {}", context.argv[i]);
  facts.facts.emplace_back("command", line);
  facts.facts.emplace_back("load profile", asked.trace);
  facts.facts.emplace_back("source", loads.source);
  facts.facts.emplace_back("model", loads.model);
  facts.facts.emplace_back("seed", std::to_string(asked.seed));
  facts.facts.emplace_back("plan drawn", plan.strategy);
  for (const auto& [name, value] : plan.provenance) {
    std::string words = "plan: " + name;
    std::ranges::replace(words, '_', ' ');
    facts.facts.emplace_back(words, value);
  }
  return facts;
}

Json plan_json(const Plan& plan, const LoadProfile& loads, const std::vector<LoadFigures>& before,
               const std::vector<LoadFigures>& after) {
  return {{"strategy", plan.strategy},  {"decoder_layers", plan.decoder_layers},
          {"layers", json_of(after)},   {"default_layers", json_of(before)},
          {"expert_load", loads.loads}, {"experts_of_device", holders_json(plan)}};
}

PageLoads loads_of(const LoadProfile& loads, const std::vector<LoadFigures>& before,
                   const std::vector<LoadFigures>& after) {
  PageLoads shown;
  for (const LoadFigures& layer : before) shown.before.push_back(layer.load);
  for (const LoadFigures& layer : after) shown.after.push_back(layer.load);
  for (const auto& layer : loads.loads) shown.of_experts.emplace_back(layer.begin(), layer.end());
  return shown;
}

}  // namespace

Result<int> report_from_loads(const LoadProfile& loads, const Cluster& cluster, const LoadsReport& asked,
                              const Context& context, ThreadPool& pool) {
  report::Page page;
  Json json = {{"html", asked.html}, {"kind", "load_profile"}, {"in_sample", true}};
  std::optional<Plan> drawn = asked.plan;
  if (asked.compares) {
    PlanOptions options;
    options.seed = asked.seed;
    const LoadComparison made = GRACE_TRY(
        compared_from_loads(loads, cluster, split_at_commas(asked.strategies), asked.slots, options, pool));
    Output output = output_of(loads, cluster, made, asked.seed);
    page.title = output.page.title;
    page.summary = output.notes.front() + "\n" + kSource;
    page.verdict = made.recommendation;
    report::Table& table = output.blocks.front().table;
    table.sortable = true;
    table.chosen_row = static_cast<int>(made.recommended);
    page.sections.push_back({"Strategies", "", {std::move(table)}});
    json.update(output.json);
    if (!drawn) drawn = GRACE_TRY(plan_of(drawn_row(made), loads, cluster, asked, pool));
  }
  const Plan& plan = *drawn;
  const Plan vanilla = vanilla_plan(plan.model, plan.num_experts, plan.decoder_layers, cluster);
  const std::vector<LoadFigures> after = GRACE_TRY(judge_loads(plan, loads)),
                                 before = GRACE_TRY(judge_loads(vanilla, loads));
  if (!asked.compares) {
    page.title = fmt::format("{} for {}, from loads alone", plan.strategy, plan.model);
    page.summary = fmt::format("Loads of {} MoE layers of {} experts.\n{}", loads.num_moe_layers(),
                               loads.num_experts, kSource);
    page.verdict = fmt::format(
        "{}: the fullest device does {:.3f} times the mean load, {:.3f} times under the default placement.",
        plan.strategy, mean_of(after).max_over_mean, mean_of(before).max_over_mean);
  }
  for (const int layer : plan.decoder_layers) page.layers.push_back(std::to_string(layer));
  page.sections.push_back(
      load_section(plan, cluster, loads_of(loads, before, after), page.layers,
                   "mean over layers, an expert\u2019s load shared equally by its copies"));
  page.sections.push_back(holders_section(plan, cluster, table_of(after, plan.decoder_layers, "")));
  page.sections.push_back({"What loads do not say", kUnknown, {}});
  const report::Facts provenance = provenance_of(loads, asked, plan, context);
  page.sections.push_back({"How this page was made", "", {provenance}});
  json["plan"] = plan_json(plan, loads, before, after);
  json["provenance"] = Json::object();
  for (const auto& [name, value] : provenance.facts) json["provenance"][name] = value;
  GRACE_TRY(write_text_atomically(asked.html, report::html(page)));
  if (asked.json)
    print_json(json);
  else
    print(page.verdict + fmt::format("\n{}: written\n", asked.html));
  return 0;
}

}  // namespace grace::app
