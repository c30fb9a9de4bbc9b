// Three models on the published machines: what each strategy makes of a whole pass, simulated.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "grace/model/shape.h"
#include "grace/planner/budget.h"
#include "grace/planner/compare.h"
#include "grace/sim/simulate.h"
#include "grace/sizing/model_price.h"
#include "grace/sizing/sizes.h"
#include "grace/trace/synthetic.h"
#include "progress.h"
#include "reproduce_holdout.h"
#include "reproduce_tables.h"

namespace grace::app {
namespace {

struct GridModel {
  const char* shape;
  const char* speedup;  // end to end on 2x2, as published
};
constexpr std::array kModels = {GridModel{"olmoe", "2.98 x"}, GridModel{"deepseek-v2-lite", "2.21 x"},
                                GridModel{"qwen3-30b-a3b", "2.81 x"}};
constexpr std::array kShapes = {"1x8", "2x2", "2x4"};
constexpr std::array kMachines = {"3090", "4090"};
constexpr std::array kStrategies = {"vanilla", "occult", "grace-uniform", "grace", "eplb", "joint"};

// Enough to plan from and to judge by, and few enough for 108 simulations in a minute.
constexpr std::int64_t kMadeUpTokens = 16'384, kMadeUpLength = 128;

// What one strategy does on one cluster.
struct Simulated {
  double layer_s = 0;  // a MoE layer's pass
  double whole_s = 0;
  double exchange_of_layer = 0;
  double exchange_of_whole = 0;
};

Result<Simulated> simulated(const Plan& plan, const Trace& trace, const ModelShape& shape,
                            const Contender& contender, const Cluster& cluster, const Measure& measure) {
  SimulateOptions options;
  const double length = static_cast<double>(trace.num_tokens()) / static_cast<double>(trace.num_sequences());
  options.batch = std::max(1, static_cast<int>(std::lround(static_cast<double>(measure.batch) / length)));
  options.dispatch = contender.dispatch;
  options.sizes = sizes_of(shape);
  options.model = price_of(shape, trace);
  options.recorded_decode_passes = 0;
  const PhaseTime whole = GRACE_TRY(simulate(trace, plan, cluster, options, measure.pool)).whole();
  const auto layers = static_cast<double>(std::max<std::int64_t>(1, whole.passes) * trace.num_moe_layers());
  return Simulated{whole.moe.total_s() / layers, whole.total_s(), whole.all_to_all_of_moe_layers(),
                   whole.all_to_all_of_whole()};
}

// A model's trace cut in two, and its grid.
class Grid {
 public:
  Grid(const Subject& subject, ModelShape shape, const Measure& measure)
      : shape_(std::move(shape)), measure_(measure), holdout_(holdout_of(subject, measure, 0)) {
    judged_ = select_sequences(subject.trace, holdout_.judged_sequences);
  }

  // A row a machine, on one shape of cluster. Plans that do not look at seconds are made once.
  Status add_rows(const char* cluster_shape, const std::string& model, std::vector<Row>& rows,
                  const std::function<void()>& tick) {
    std::map<std::string, Plan> plans;
    for (const char* machine : kMachines) {
      const Cluster cluster = GRACE_TRY(parse_cluster(fmt::format("{}:{}", machine, cluster_shape)));
      Row& row = rows.emplace_back();
      row.name = fmt::format("{}, {}", model, cluster.name);
      std::optional<Simulated> vanilla;
      for (const char* strategy : kStrategies) {
        const Contender contender = GRACE_TRY(parse_contender(strategy));
        if (!plans.contains(strategy) || needs_sizes(strategy))
          plans[strategy] = GRACE_TRY(plan_for(contender, cluster, plans));
        const Simulated done =
            GRACE_TRY(simulated(plans.at(strategy), judged_, shape_, contender, cluster, measure_));
        if (!vanilla) vanilla = done;
        add(strategy, done, *vanilla, row);
        tick();
      }
    }
    return {};
  }

 private:
  // eplb and joint get what grace's fullest device holds, which was planned before them.
  Result<Plan> plan_for(const Contender& contender, const Cluster& cluster,
                        const std::map<std::string, Plan>& plans) {
    PlanOptions options;
    options.strategy = contender.strategy;
    options.r = contender.r;
    options.seed = holdout_.seed;
    options.effort = measure_.effort;
    options.objective.sizes = sizes_of(shape_);
    options.objective.batch = measure_.batch;
    if (contender.takes_slots) options.slots = fullest_devices(plans.at("grace"));
    return GRACE_TRY(make_plan(holdout_.learn, cluster, options, measure_.pool)).plan;
  }

  static void add(const std::string& strategy, const Simulated& done, const Simulated& vanilla, Row& row) {
    row.add(strategy + "_layer_time", done.layer_s);
    row.add(strategy + "_over_vanilla", vanilla.layer_s > 0 ? done.layer_s / vanilla.layer_s : 1);
    row.add(strategy + "_all_to_all_share", done.exchange_of_layer);
    row.add(strategy + "_all_to_all_share_of_whole", done.exchange_of_whole);
    row.add(strategy + "_speedup_of_whole", done.whole_s > 0 ? vanilla.whole_s / done.whole_s : 1);
  }

  ModelShape shape_;
  const Measure& measure_;
  Holdout holdout_;
  Trace judged_;
};

constexpr std::array kTimeColumns = {
    Column{"vanilla_layer_time", "vanilla [us]", 1e6, 0},
    Column{"occult_over_vanilla", "occult", 1, 3},
    Column{"grace-uniform_over_vanilla", "uniform + HSC", 1, 3},
    Column{"grace_over_vanilla", "grace", 1, 3},
    Column{"eplb_over_vanilla", "eplb", 1, 3},
    Column{"joint_over_vanilla", "joint", 1, 3},
    Column{"vanilla_all_to_all_share", "exchange: vanilla [%]", 100, 1},
    Column{"grace_all_to_all_share", "grace [%]", 100, 1},
    Column{"joint_all_to_all_share", "joint [%]", 100, 1},
    Column{"vanilla_all_to_all_share_of_whole", "of the whole: vanilla [%]", 100, 1},
    Column{"grace_speedup_of_whole", "whole: grace [x]", 1, 2},
    Column{"joint_speedup_of_whole", "joint [x]", 1, 2},
};

std::vector<Claim> claims_of(std::span<const Row> rows) {
  std::vector<Claim> claims;
  for (const Row& row : rows) {
    if (!row.name.ends_with("2x2")) continue;
    for (const GridModel& model : kModels)
      if (row.name.starts_with(model.shape))
        claims.push_back({fmt::format("{}: end to end, vanilla over grace", row.name), model.speedup, 1,
                          row.values.at("grace_speedup_of_whole"), Claim::Unit::kTimes, 1});
  }
  for (const auto& [figure, words, published] :
       {std::array{"vanilla_all_to_all_share", "all-to-all of a MoE layer, vanilla, mean of the 2x2 rows",
                   "over 70 %"},
        std::array{"vanilla_all_to_all_share_of_whole",
                   "all-to-all of the whole, vanilla, mean of the 2x2 rows", "about 40 %"}}) {
    std::vector<double> shares;
    for (const Row& row : rows)
      if (row.name.ends_with("2x2")) shares.push_back(row.mean(figure));
    claims.push_back({words, published, 0, {mean_of(shares)}, Claim::Unit::kShare, 0});
  }
  return claims;
}

// The published shares beside ours, both of 2x2.
std::string share_note(std::span<const Claim> claims) {
  const double of_layer = claims[claims.size() - 2].mean();
  const double of_whole = claims.back().mean();
  return fmt::format(
      "All-to-all of the whole over all-to-all of a MoE layer is the MoE layers' part of the whole: {:.0f} % "
      "here, about {:.0f} % by the published shares. Here attention and dense layers cost their arithmetic "
      "and "
      "memory traffic alone, at half of a device's peak; whatever else a real pass spends is not counted.",
      of_layer > 0 ? 100 * of_whole / of_layer : 0.0, 100 * 0.40 / 0.70);
}

}  // namespace

Result<Subject> made_up_subject(std::string_view model, const Measure& measure) {
  const ModelShape shape = GRACE_TRY(find_shape(model));
  SyntheticOptions options;
  options.moe_layers = static_cast<int>(shape.moe_layers.size());
  options.num_experts = shape.num_experts;
  options.experts_per_token = shape.experts_per_token;
  options.tokens = kMadeUpTokens;
  options.sequence_length = kMadeUpLength;
  options.seed = measure.seed;
  options.model = shape.name;
  Trace trace = GRACE_TRY(synthetic_trace(options, measure.pool));
  Subject subject{shape.name + " (made up)", std::move(trace), sizes_of(shape), true};
  subject.trace.decoder_layers = shape.moe_layers;
  return subject;
}

Result<ReproducedTable> grid_table(std::span<const Subject> subjects, const Measure& measure) {
  std::vector<Row> rows;
  std::vector<std::string> notes;
  Progress progress("grid");
  const auto total =
      static_cast<std::int64_t>(kModels.size() * kShapes.size() * kMachines.size() * kStrategies.size());
  std::int64_t done = 0;
  for (const GridModel& model : kModels) {
    const ModelShape shape = GRACE_TRY(find_shape(model.shape));
    const auto recorded = std::ranges::find_if(subjects, [&](const Subject& subject) {
      const std::optional<ModelShape> known = known_shape(subject.trace.model);
      return !subject.is_made_up && known && known->name == shape.name &&
             check_shape(shape, subject.trace).ok();
    });
    const bool is_recorded = recorded != subjects.end();
    const Subject subject = is_recorded ? *recorded : GRACE_TRY(made_up_subject(model.shape, measure));
    notes.push_back(fmt::format("{}: {}.", model.shape,
                                is_recorded ? "the trace " + subject.name
                                            : fmt::format("no trace was given; made up, {} tokens, {}",
                                                          subject.trace.num_tokens(), subject.trace.source)));
    Grid grid(subject, shape, measure);
    for (const char* cluster_shape : kShapes)
      GRACE_TRY(grid.add_rows(cluster_shape, model.shape, rows, [&] { progress(++done, total); }));
  }
  const std::vector<Claim> claims = claims_of(rows);
  notes.push_back(share_note(claims));
  return reproduced(
      "grid", "",
      table_of(
          "A MoE layer's time over vanilla's, and the share of it that is exchange; simulated, one split; "
          "eplb and joint in grace's slots",
          "model, cluster", rows, kTimeColumns),
      rows, claims, std::move(notes));
}

}  // namespace grace::app
