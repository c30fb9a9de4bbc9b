#include <map>
#include <numeric>

#include "bind.h"
#include "grace/planner/compare.h"
#include "grace/planner/judge.h"
#include "grace/planner/loads.h"
#include "grace/planner/planner.h"
#include "grace/sim/simulate.h"
#include "grace/sizing/model_price.h"
#include "grace/sizing/sizes.h"

namespace grace::python {
namespace {

std::vector<int> slots_from(const std::string& spec, const Trace& trace, const Cluster& cluster,
                            std::uint64_t seed, ThreadPool& pool) {
  if (spec.empty()) return {};
  const std::vector<SlotsSpec> specs = value_or_raise(parse_slots(spec));
  if (specs.size() != 1) throw py::value_error("slots: one budget, not " + std::to_string(specs.size()));
  return value_or_raise(slots_for(specs.front(), trace, cluster, seed, pool));
}

struct PlanArguments {
  std::string strategy, slots, shape;
  double r, memory_bytes, effort;
  std::int64_t batch;
  std::uint64_t seed;
  int partners, threads;
};

PlanOptions options_of(const PlanArguments& asked) {
  PlanOptions options;
  options.strategy = asked.strategy;
  options.r = asked.r;
  options.seed = asked.seed;
  options.memory_bytes = asked.memory_bytes;
  options.effort = asked.effort;
  options.partners = asked.partners;
  options.objective.batch = asked.batch;
  return options;
}

Plan plan_trace(const Trace& trace, const Cluster& cluster, const PlanArguments& asked) {
  const py::gil_scoped_release release;
  ThreadPool pool(asked.threads);
  PlanOptions options = options_of(asked);
  Result<LayerSizes> sizes = sizes_if_known(asked.shape, trace);
  const auto fail = [](const Error& error) {
    const py::gil_scoped_acquire acquire;
    raise(error);
  };
  if (sizes.ok()) options.objective.sizes = sizes.value();
  if (!sizes.ok() && (!asked.shape.empty() || needs_sizes(asked.strategy))) fail(sizes.error());
  if (const Status known = check_sizes(asked.strategy, options.objective.sizes, trace.model); !known.ok())
    fail(known.error());
  {
    const py::gil_scoped_acquire acquire;
    options.slots = slots_from(asked.slots, trace, cluster, asked.seed, pool);
  }
  Result<PlanResult> made = make_plan(trace, cluster, options, pool);
  if (!made.ok()) fail(made.error());
  return std::move(made.value().plan);
}

Plan plan_loads(const LoadProfile& loads, const Cluster& cluster, const PlanArguments& asked) {
  PlanOptions options = options_of(asked);
  if (!asked.slots.empty()) {
    const std::vector<SlotsSpec> specs = value_or_raise(parse_slots(asked.slots));
    if (specs.size() != 1 || specs.front().as_grace)
      throw py::value_error("slots: '" + asked.slots + "' is no number, which loads alone need");
    options.slots = {specs.front().slots};
  }
  return std::move(value_or_raise(unlocked([&] {
                     ThreadPool pool(asked.threads);
                     return make_plan(loads, cluster, options, pool);
                   })).plan);
}

template <typename Row, typename Get>
Array column(const std::vector<Row>& rows, Get get) {
  std::vector<double> values;
  for (const Row& row : rows) values.push_back(get(row));
  const auto count = static_cast<py::ssize_t>(values.size());
  return array_of(std::move(values), {count});
}

py::dict dict_of(const std::vector<Figures>& layers, bool sizes_known) {
  py::dict figures;
  figures["remote_nodes_per_token"] =
      column(layers, [](const Figures& f) { return f.remote_nodes_per_token; });
  figures["forwards_per_token"] = column(layers, [](const Figures& f) { return f.forwards_per_token; });
  figures["devices_per_token"] = column(layers, [](const Figures& f) { return f.devices_per_token; });
  figures["load_max_over_mean"] = column(layers, [](const Figures& f) { return f.load_max_over_mean; });
  figures["load_std"] = column(layers, [](const Figures& f) { return f.load_std; });
  figures["cross_node_vectors"] = column(layers, [](const Figures& f) { return f.cross_node_vectors; });
  figures["intra_node_vectors"] = column(layers, [](const Figures& f) { return f.intra_node_vectors; });
  figures["judge_slow"] = column(layers, [](const Figures& f) { return f.judge(kSlowYardstick); });
  figures["judge_fast"] = column(layers, [](const Figures& f) { return f.judge(kFastYardstick); });
  if (!sizes_known) return figures;
  figures["layer_seconds"] = column(layers, [](const Figures& f) { return f.time.total_s(); });
  figures["all_to_all_seconds"] = column(layers, [](const Figures& f) { return f.time.all_to_all_s(); });
  figures["compute_seconds"] = column(layers, [](const Figures& f) { return f.time.compute_s; });
  return figures;
}

py::dict evaluate_trace(const Plan& plan, const Trace& trace, const Cluster& cluster, std::int64_t batch,
                        const std::string& dispatch, const std::string& shape, std::uint64_t seed,
                        int threads) {
  JudgeOptions options;
  options.batch = batch;
  options.dispatch = value_or_raise(parse_dispatch(dispatch));
  options.sizes = value_or_raise(sizes_if_known(shape, trace));
  std::vector<Figures> layers = value_or_raise(unlocked([&]() -> Result<std::vector<Figures>> {
    ThreadPool pool(threads);
    std::vector<int> all(static_cast<std::size_t>(trace.num_sequences()));
    std::iota(all.begin(), all.end(), 0);
    const JudgeTokens tokens = judge_tokens(trace, all, cluster.num_devices(), seed);
    return judge(plan, trace, tokens, cluster, options, pool);
  }));
  return dict_of(layers, options.sizes.known());
}

py::dict evaluate_loads(const Plan& plan, const LoadProfile& loads) {
  const std::vector<LoadFigures> layers = value_or_raise(judge_loads(plan, loads));
  py::dict figures;
  figures["load_max_over_mean"] = column(layers, [](const LoadFigures& f) { return f.max_over_mean; });
  figures["load_std"] = column(layers, [](const LoadFigures& f) { return f.deviation_of_mean; });
  std::vector<double> load;
  for (const LoadFigures& layer : layers) load.insert(load.end(), layer.load.begin(), layer.load.end());
  figures["load_of_device"] =
      array_of(std::move(load), {static_cast<py::ssize_t>(layers.size()), plan.num_devices()});
  return figures;
}

py::dict dict_of(const PhaseTime& phase) {
  py::dict seconds;
  seconds["passes"] = phase.passes;
  seconds["tokens"] = phase.tokens;
  seconds["all_to_all"] = phase.moe.all_to_all_s();
  seconds["experts"] = phase.moe.compute_s;
  seconds["beside_experts"] = phase.beside_experts_s;
  seconds["attention"] = phase.attention_s;
  seconds["dense_ffn"] = phase.dense_ffn_s;
  seconds["head"] = phase.head_s;
  seconds["moe_layers"] = phase.moe_layers_s();
  seconds["total"] = phase.total_s();
  return seconds;
}

py::dict simulate_trace(const Plan& plan, const Trace& trace, const Cluster& cluster,
                        const std::string& shape, int batch, int prefill, int decode,
                        const std::string& dispatch, const std::string& combine, int threads) {
  const ModelShape sizes = value_or_raise(shape_for(shape, trace.model));
  raise_unless_ok(check_shape(sizes, trace));
  SimulateOptions options;
  options.batch = batch;
  options.dispatch = value_or_raise(parse_dispatch(dispatch));
  options.combine = value_or_raise(parse_combine(combine));
  options.workload = {prefill, decode};
  options.sizes = sizes_of(sizes);
  options.model = price_of(sizes, trace);
  const Simulation simulation = value_or_raise(unlocked([&] {
    ThreadPool pool(threads);
    return simulate(trace, plan, cluster, options, pool);
  }));
  const std::vector<LayerSimulation>& layers = simulation.layers;
  py::dict result;
  result["prefill"] = dict_of(simulation.prefill);
  result["decode"] = dict_of(simulation.decode);
  result["whole"] = dict_of(simulation.whole());
  result["layer_seconds"] = column(layers, [](const LayerSimulation& l) { return l.time().total_s(); });
  result["all_to_all_seconds"] =
      column(layers, [](const LayerSimulation& l) { return l.time().all_to_all_s(); });
  result["cross_node_vectors"] =
      column(layers, [](const LayerSimulation& l) { return static_cast<double>(l.cross_node_vectors); });
  std::vector<std::int64_t> load;
  for (const LayerSimulation& layer : layers) load.insert(load.end(), layer.load.begin(), layer.load.end());
  result["load_of_device"] =
      array_of(std::move(load), {static_cast<py::ssize_t>(layers.size()), cluster.num_devices()});
  return result;
}

py::dict dict_of(const Comparison& comparison) {
  py::list rows;
  for (const CompareRow& row : comparison.rows) {
    py::dict means, deviations;
    for (const auto& [name, spread] : row.figures) {
      means[py::str(name)] = spread.mean;
      deviations[py::str(name)] = spread.deviation;
    }
    py::dict one;
    one["name"] = row.name;
    one["slots"] = row.slots;
    one["lossy"] = row.lossy;
    one["mean"] = means;
    one["deviation"] = deviations;
    rows.append(one);
  }
  py::dict result;
  result["rows"] = rows;
  result["measure"] = comparison.measure;
  result["best"] = comparison.best;
  result["recommended"] = comparison.recommended;
  result["recommendation"] = comparison.recommendation;
  return result;
}

py::dict compare_trace(const Trace& trace, const Cluster& cluster, const std::vector<std::string>& strategies,
                       const std::string& slots, int splits, std::int64_t batch, const std::string& shape,
                       double effort, std::uint64_t seed, int threads) {
  CompareOptions options;
  options.sizes = value_or_raise(sizes_if_known(shape, trace));
  for (const std::string& name :
       strategies.empty() ? default_contenders(options.sizes.known()) : strategies) {
    options.contenders.push_back(value_or_raise(parse_contender(name)));
    raise_unless_ok(check_sizes(options.contenders.back().strategy, options.sizes, trace.model));
  }
  if (!slots.empty()) options.slots = value_or_raise(parse_slots(slots));
  options.splits = splits;
  options.batch = batch;
  options.effort = effort;
  options.seed = seed;
  return dict_of(value_or_raise(unlocked([&] {
    ThreadPool pool(threads);
    return compare(trace, cluster, options, pool);
  })));
}

PlanArguments arguments_of(std::string strategy, std::string slots, std::string shape, double r,
                           double memory_bytes, double effort, std::int64_t batch, std::uint64_t seed,
                           int partners, int threads) {
  return {
      std::move(strategy), std::move(slots), std::move(shape), r, memory_bytes, effort, batch, seed, partners,
      threads_of(threads)};
}

}  // namespace

void bind_planning(py::module_& module) {
  const auto names_of = [](const std::vector<std::string_view>& names) {
    return std::vector<std::string>(names.begin(), names.end());
  };
  module.attr("strategies") = names_of(strategy_names());
  module.attr("load_strategies") = names_of(load_strategy_names());
  module.attr("known_shapes") = names_of(known_shapes());
  py::class_<PlanArguments>(module, "PlanArguments").def(py::init(&arguments_of));
  module.def("plan_trace", &plan_trace);
  module.def("plan_loads", &plan_loads);
  module.def("vanilla_plan", [](const std::string& model, int num_experts, const std::vector<int>& layers,
                                const Cluster& cluster) {
    if (num_experts < 1)
      throw py::value_error("num_experts: " + std::to_string(num_experts) + " is less than 1");
    return vanilla_plan(model, num_experts, layers, cluster);
  });
  module.def("evaluate_trace",
             [](const Plan& plan, const Trace& trace, const Cluster& cluster, std::int64_t batch,
                const std::string& dispatch, const std::string& shape, std::uint64_t seed, int threads) {
               return evaluate_trace(plan, trace, cluster, batch, dispatch, shape, seed, threads_of(threads));
             });
  module.def("evaluate_loads", &evaluate_loads);
  module.def("simulate", [](const Plan& plan, const Trace& trace, const Cluster& cluster,
                            const std::string& shape, int batch, int prefill, int decode,
                            const std::string& dispatch, const std::string& combine, int threads) {
    return simulate_trace(plan, trace, cluster, shape, batch, prefill, decode, dispatch, combine,
                          threads_of(threads));
  });
  module.def("compare",
             [](const Trace& trace, const Cluster& cluster, const std::vector<std::string>& strategies,
                const std::string& slots, int splits, std::int64_t batch, const std::string& shape,
                double effort, std::uint64_t seed, int threads) {
               return compare_trace(trace, cluster, strategies, slots, splits, batch, shape, effort, seed,
                                    threads_of(threads));
             });
}

}  // namespace grace::python
