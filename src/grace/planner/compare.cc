#include "grace/planner/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "grace/planner/judge.h"
#include "grace/planner/loads.h"
#include "grace/planner/strategy.h"

namespace grace {
namespace {

constexpr std::string_view kFeedback = "-feedback";
constexpr std::string_view kKnee = "grace-knee";

// One split's plan and how it was judged.
struct Judged {
  std::vector<Figures> layers;
  double slots_max = 0;  // mean over layers of the fullest device's copies
  double copies = 0;
  double plan_seconds = 0;
  bool lossy = false;
  int second_copies_moved = 0;
  std::optional<RowCertificate> certificate;
};

double copies_of(const Plan& plan) {
  std::size_t copies = 0;
  for (const LayerPlan& layer : plan.layers)
    for (const std::vector<ExpertId>& replicas : layer.replicas_of_device) copies += replicas.size();
  return static_cast<double>(copies) / static_cast<double>(plan.layers.size());
}

// One split of one trace.
struct Split {
  Trace learn;
  JudgeTokens judge;
  std::uint64_t seed;
};

Split split_of(const Trace& trace, const Cluster& cluster, std::uint64_t seed) {
  constexpr std::array kHalves = {0.5, 0.5};
  const auto parts = split_sequences(trace.num_sequences(), kHalves, seed);
  return {select_sequences(trace, parts[0]), judge_tokens(trace, parts[1], cluster.num_devices(), seed),
          seed};
}

PlanOptions plan_options(const Contender& contender, const CompareOptions& options, std::uint64_t seed) {
  PlanOptions plan;
  plan.strategy = contender.strategy;
  plan.r = contender.r;
  plan.seed = seed;
  plan.effort = options.effort;
  plan.objective.sizes = options.sizes;
  plan.objective.batch = options.batch;
  return plan;
}

JudgeOptions judge_options(const Contender& contender, const CompareOptions& options) {
  JudgeOptions judge;
  judge.batch = options.batch;
  judge.dispatch = contender.dispatch;
  judge.sizes = options.sizes;
  return judge;
}

struct Planned {
  Plan plan;
  double seconds;
};
Result<Planned> plan_for(const Contender& contender, const Trace& learn, const Cluster& cluster,
                         PlanOptions plan, ThreadPool& pool) {
  const auto start = std::chrono::steady_clock::now();
  PlanResult made = GRACE_TRY(make_plan(learn, cluster, plan, pool));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!contender.routing.empty()) made.plan.routing = contender.routing;
  return Planned{std::move(made.plan), seconds};
}

// Plans of one split by strategy, r and budget: contenders that differ in routing alone share one.
using PlanCache = std::map<std::tuple<std::string, double, std::vector<int>>, Planned>;

RowCertificate certificate_of(const Contender& contender, const Plan& plan, const Certificate& bounds,
                              const Figures& judged) {
  RowCertificate certificate{Aim::kJudgeSlow, bounds, 0};
  if (contender.strategy.ends_with("-fast")) certificate.aim = Aim::kJudgeFast;
  const auto insample = plan.figures.find("objective_insample");
  // With layer time the objective's unit is another than seconds.
  if (insample != plan.figures.end() && contender.strategy != "joint" && insample->second > 0)
    certificate.overfit = value_of(judged, certificate.aim) / insample->second - 1;
  return certificate;
}

Result<Judged> judge_split(const Contender& contender, const std::vector<int>& slots, const Trace& trace,
                           const Split& split, bool certified, const Cluster& cluster,
                           const CompareOptions& options, PlanCache& cache, ThreadPool& pool) {
  PlanOptions plan = plan_options(contender, options, split.seed);
  if (contender.takes_slots) plan.slots = slots;
  const auto key = std::make_tuple(contender.strategy, contender.r, plan.slots);
  if (!cache.contains(key)) {
    Contender as_planned = contender;
    as_planned.routing.clear();
    cache.emplace(key, GRACE_TRY(plan_for(as_planned, split.learn, cluster, plan, pool)));
  }
  Planned planned = cache.at(key);
  if (!contender.routing.empty()) planned.plan.routing = contender.routing;
  Judged judged;
  judged.layers =
      GRACE_TRY(judge(planned.plan, trace, split.judge, cluster, judge_options(contender, options), pool));
  for (const int most : fullest_devices(planned.plan))
    judged.slots_max += static_cast<double>(most) / static_cast<double>(planned.plan.layers.size());
  judged.copies = copies_of(planned.plan);
  judged.plan_seconds = planned.seconds;
  judged.lossy = planned.plan.is_lossy();
  judged.second_copies_moved = second_copies_moved(planned.plan);
  if (!certified || !contender.takes_slots) return judged;
  const Aim aim = contender.strategy.ends_with("-fast") ? Aim::kJudgeFast : Aim::kJudgeSlow;
  const Certificate bounds = GRACE_TRY(
      certify(planned.plan, trace, split.judge, cluster, aim, options.batch, held_slots(planned.plan), pool));
  judged.certificate = certificate_of(contender, planned.plan, bounds, mean_of(judged.layers));
  return judged;
}

Spread spread_of(std::span<const double> values) {
  Spread spread;
  for (const double value : values) spread.mean += value / static_cast<double>(values.size());
  if (values.size() < 2) return spread;
  double squares = 0;
  for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
  spread.deviation = std::sqrt(squares / static_cast<double>(values.size() - 1));
  return spread;
}

void add_figures(const std::vector<Judged>& splits, const LayerSizes& sizes, CompareRow& row) {
  const auto put = [&](const char* name, auto get) {
    std::vector<double> values;
    for (const Judged& judged : splits) values.push_back(get(judged, mean_of(judged.layers)));
    row.figures[name] = spread_of(values);
  };
  put("slots_per_device_max", [](const Judged& j, const Figures&) { return j.slots_max; });
  put("copies_per_layer", [](const Judged& j, const Figures&) { return j.copies; });
  put("plan_seconds", [](const Judged& j, const Figures&) { return j.plan_seconds; });
  put("remote_nodes_per_token", [](const Judged&, const Figures& f) { return f.remote_nodes_per_token; });
  put("devices_per_token", [](const Judged&, const Figures& f) { return f.devices_per_token; });
  put("forwards_per_token", [](const Judged&, const Figures& f) { return f.forwards_per_token; });
  put("load_max_over_mean", [](const Judged&, const Figures& f) { return f.load_max_over_mean; });
  put("load_std", [](const Judged&, const Figures& f) { return f.load_std; });
  put("judge_slow", [](const Judged&, const Figures& f) { return f.judge(kSlowYardstick); });
  put("judge_fast", [](const Judged&, const Figures& f) { return f.judge(kFastYardstick); });
  if (!sizes.known()) return;
  const double bytes = 2 * sizes.vector_bytes();
  put("layer_time", [](const Judged&, const Figures& f) { return f.time.total_s(); });
  put("all_to_all", [](const Judged&, const Figures& f) { return f.time.all_to_all_s(); });
  put("idle", [](const Judged&, const Figures& f) { return f.time.idle_s(); });
  put("bytes_cross_node", [&](const Judged&, const Figures& f) { return f.cross_node_vectors * bytes; });
  put("bytes_intra_node", [&](const Judged&, const Figures& f) { return f.intra_node_vectors * bytes; });
}

std::string label_of(const CompareRow& row) {
  return row.slots.empty()
             ? row.name
             : fmt::format("{} at {} slots", row.name, row.slots == "grace" ? "grace's" : row.slots);
}

void recommend(Comparison& comparison) {
  const auto measure = [&](const CompareRow& row) { return row.figures.at(comparison.measure); };
  const auto slots = [](const CompareRow& row) { return row.figures.at("slots_per_device_max").mean; };
  const bool all_lossy = std::ranges::all_of(comparison.rows, &CompareRow::lossy);
  const auto counts = [&](const CompareRow& row) { return all_lossy || !row.lossy; };
  while (!counts(comparison.rows[comparison.best])) ++comparison.best;
  for (std::size_t i = comparison.best + 1; i < comparison.rows.size(); ++i)
    if (counts(comparison.rows[i]) &&
        measure(comparison.rows[i]).mean < measure(comparison.rows[comparison.best]).mean)
      comparison.best = i;
  const CompareRow& best = comparison.rows[comparison.best];
  // What is as good as the best for less memory is better.
  comparison.recommended = comparison.best;
  for (std::size_t i = 0; i < comparison.rows.size(); ++i) {
    const CompareRow& row = comparison.rows[i];
    const double noise = std::max(measure(row).deviation, measure(best).deviation);
    if (counts(row) && measure(row).mean <= measure(best).mean + noise &&
        slots(row) < slots(comparison.rows[comparison.recommended]))
      comparison.recommended = i;
  }
  const CompareRow& chosen = comparison.rows[comparison.recommended];
  const auto vanilla = std::ranges::find(comparison.rows, "vanilla", &CompareRow::name);
  if (vanilla == comparison.rows.end()) {
    comparison.recommendation = fmt::format("Of these, {} is best.", label_of(chosen));
    return;
  }
  const Spread base = measure(*vanilla);
  const double less = base.mean - measure(chosen).mean;
  const double noise = std::max(base.deviation, measure(chosen).deviation);
  // Seconds are said in microseconds.
  const auto said = [&](double value) {
    return comparison.measure == "layer_time" ? fmt::format("{:.4g} us", value * 1e6)
                                              : fmt::format("{:.4g}", value);
  };
  std::string what = comparison.measure;
  std::ranges::replace(what, '_', ' ');
  if (comparison.recommended == static_cast<std::size_t>(vanilla - comparison.rows.begin()) ||
      less <= noise) {
    comparison.recommendation = fmt::format(
        "Not worth it: the default placement (vanilla) is within noise of the best; {} of {} against "
        "{} of {}.",
        what, said(base.mean), said(measure(best).mean), label_of(best));
    return;
  }
  const double more_slots = slots(chosen) - slots(*vanilla);
  comparison.recommendation = fmt::format(
      "Use {}: {:.1f} % less {} than the default placement ({} against {}, held out, deviation "
      "{}), for {}.",
      label_of(chosen), 100 * less / base.mean, what, said(measure(chosen).mean), said(base.mean),
      said(measure(chosen).deviation),
      more_slots < 0.05 ? std::string("no more memory")
                        : fmt::format("room for {:.1f} more experts a device and layer", more_slots));
}

Status check_options(std::span<const Trace* const> traces, const CompareOptions& options) {
  if (options.contenders.empty()) return invalid_input("strategies: none is named");
  if (options.splits < 1 || options.splits > 1000)
    return invalid_input(fmt::format("splits: {} is outside [1, 1000]", options.splits));
  if (options.batch < 1)
    return invalid_input(fmt::format("batch: {} tokens, must be at least 1", options.batch));
  for (const Trace* trace : traces)
    if (trace->num_sequences() < 2)
      return invalid_input(fmt::format("trace {}: {} sequences; holding some out needs at least 2",
                                       trace->source.empty() ? trace->model : trace->source,
                                       trace->num_sequences()));
  return {};
}

}  // namespace

Result<Contender> parse_contender(std::string_view name) {
  Contender contender;
  contender.name = name;
  contender.r = kPublishedR;
  std::string_view strategy = name;
  if (strategy.ends_with(kFeedback)) {
    strategy.remove_suffix(kFeedback.size());
    contender.routing = "cover_feedback";
  }
  if (strategy == kKnee) {
    strategy = "grace";
    contender.r = -1;
  }
  // The default placement under other engines' exchanges.
  if (strategy == "vanilla") contender.dispatch = Dispatch::kFlat;
  if (strategy == "padded") contender.dispatch = Dispatch::kPadded;
  if (strategy == "allgather") contender.dispatch = Dispatch::kAllGather;
  if (contender.dispatch != Dispatch::kTwoStage) strategy = "vanilla";
  contender.strategy = strategy;
  const auto names = strategy_names();
  if (std::ranges::find(names, strategy) == names.end())
    return invalid_input(
        fmt::format("strategy: '{}' is not one of {}, {}, padded, allgather, nor one of them with {}", name,
                    fmt::join(names, ", "), kKnee, kFeedback));
  if (strategy == "occult" || strategy == "c2r") contender.dispatch = Dispatch::kPerDevice;
  contender.takes_slots = strategy.starts_with("joint") || strategy.starts_with("eplb");
  return contender;
}

std::vector<std::string> default_contenders(bool sizes_known) {
  std::vector<std::string> names = {
      "vanilla", "occult", "eplb", "eplb-flat", "eplb-cover", "eplb-cover-feedback", "grace", "grace-knee"};
  if (sizes_known) names.insert(names.end(), {"joint", "joint-feedback"});
  names.insert(names.end(), {"joint-slow", "joint-slow-feedback", "joint-fast", "joint-fast-feedback"});
  return names;
}

Result<Comparison> compare(const Trace& trace, const Cluster& cluster, const CompareOptions& options,
                           ThreadPool& pool) {
  const std::array traces = {&trace};
  GRACE_TRY(check_options(traces, options));
  struct Cell {
    const Contender* contender;
    const SlotsSpec* slots;
  };
  std::vector<Cell> cells;
  for (const Contender& contender : options.contenders) {
    if (!contender.takes_slots) cells.push_back({&contender, nullptr});
    for (const SlotsSpec& slots : options.slots)
      if (contender.takes_slots) cells.push_back({&contender, &slots});
  }
  std::vector<std::vector<Judged>> judged(cells.size());
  const auto total = static_cast<std::int64_t>(cells.size()) * options.splits;
  std::int64_t done = 0;
  for (int s = 0; s < options.splits; ++s) {
    const Split split = split_of(trace, cluster, options.seed + static_cast<std::uint64_t>(s));
    PlanCache cache;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      std::vector<int> slots;
      if (cells[c].slots != nullptr)
        slots = GRACE_TRY(slots_for(*cells[c].slots, split.learn, cluster, split.seed, pool));
      judged[c].push_back(GRACE_TRY(
          judge_split(*cells[c].contender, slots, trace, split, s == 0, cluster, options, cache, pool)));
      if (options.progress) options.progress(++done, total);
    }
  }
  Comparison comparison;
  comparison.measure = options.sizes.known() ? "layer_time" : "judge_slow";
  for (std::size_t c = 0; c < cells.size(); ++c) {
    CompareRow row;
    row.name = cells[c].contender->name;
    row.slots = cells[c].slots == nullptr ? "" : cells[c].slots->name();
    add_figures(judged[c], options.sizes, row);
    row.certificate = judged[c].front().certificate;
    row.lossy = judged[c].front().lossy;
    for (const Judged& split : judged[c])
      row.second_copies_moved += static_cast<double>(split.second_copies_moved) / options.splits;
    for (Judged& split : judged[c]) row.judged.push_back(std::move(split.layers));
    comparison.rows.push_back(std::move(row));
  }
  recommend(comparison);
  return comparison;
}

Result<std::vector<Transfer>> transfer(std::span<const Trace> traces, const Cluster& cluster,
                                       const CompareOptions& options, ThreadPool& pool) {
  std::vector<const Trace*> all;
  for (const Trace& trace : traces) all.push_back(&trace);
  GRACE_TRY(check_options(all, options));
  const Aim aim = options.sizes.known() ? Aim::kLayerTime : Aim::kJudgeSlow;
  std::vector<std::vector<std::vector<std::vector<double>>>> values(  // [contender][row][column][split]
      options.contenders.size(), std::vector<std::vector<std::vector<double>>>(
                                     traces.size() + 1, std::vector<std::vector<double>>(traces.size())));
  const auto total =
      static_cast<std::int64_t>(options.contenders.size() * (traces.size() + 1)) * options.splits;
  std::int64_t done = 0;
  for (int s = 0; s < options.splits; ++s) {
    std::vector<Split> splits;
    std::vector<Trace> learn;
    for (const Trace& trace : traces) {
      splits.push_back(split_of(trace, cluster, options.seed + static_cast<std::uint64_t>(s)));
      learn.push_back(splits.back().learn);
    }
    learn.push_back(GRACE_TRY(join_traces(learn)));
    for (std::size_t c = 0; c < options.contenders.size(); ++c)
      for (std::size_t i = 0; i < learn.size(); ++i) {
        const Contender& contender = options.contenders[c];
        PlanOptions plan = plan_options(contender, options, splits.front().seed);
        const SlotsSpec& spec = options.slots.front();
        if (contender.takes_slots)
          plan.slots = GRACE_TRY(slots_for(spec, learn[i], cluster, splits.front().seed, pool));
        const Planned planned = GRACE_TRY(plan_for(contender, learn[i], cluster, plan, pool));
        for (std::size_t j = 0; j < traces.size(); ++j)
          values[c][i][j].push_back(
              value_of(mean_of(GRACE_TRY(judge(planned.plan, traces[j], splits[j].judge, cluster,
                                               judge_options(contender, options), pool))),
                       aim));
        if (options.progress) options.progress(++done, total);
      }
  }
  std::vector<Transfer> transfers;
  for (std::size_t c = 0; c < options.contenders.size(); ++c) {
    Transfer& one = transfers.emplace_back();
    one.contender = options.contenders[c].name;
    for (const auto& row : values[c]) {
      auto& spreads = one.value.emplace_back();
      for (const std::vector<double>& column : row) spreads.push_back(spread_of(column));
    }
  }
  return transfers;
}

}  // namespace grace
