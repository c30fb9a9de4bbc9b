#include <numeric>

#include "bind.h"
#include "grace/base/commas.h"
#include "grace/planner/compare.h"
#include "grace/planner/judge.h"
#include "grace/planner/loads.h"
#include "grace/planner/planner.h"
#include "grace/sim/simulate.h"
#include "grace/sizing/model_price.h"
#include "grace/sizing/requests.h"
#include "grace/sizing/sizes.h"

namespace grace::python {
namespace {

// Work with a pool of `threads`, without the interpreter's lock.
template <typename Work>
auto with_pool(int threads, Work work) {
  const int count = value_or_raise(threads_for(threads));
  return value_or_raise(unlocked([&] {
    ThreadPool pool(count);
    return work(pool);
  }));
}

Plan plan_trace(const Trace& trace, const Cluster& cluster, const PlanRequest& request, int threads) {
  return with_pool(threads, [&](ThreadPool& pool) -> Result<Plan> {
    const PlanOptions options = GRACE_TRY(plan_options(request, trace, cluster, pool));
    return GRACE_TRY(make_plan(trace, cluster, options, pool)).plan;
  });
}

Plan plan_loads(const LoadProfile& loads, const Cluster& cluster, const PlanRequest& request, int threads) {
  return with_pool(threads, [&](ThreadPool& pool) -> Result<Plan> {
    const PlanOptions options = GRACE_TRY(plan_options(request, loads));
    return GRACE_TRY(make_plan(loads, cluster, options, pool)).plan;
  });
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
  const std::vector<Figures> layers =
      with_pool(threads, [&](ThreadPool& pool) -> Result<std::vector<Figures>> {
        std::vector<int> all(static_cast<std::size_t>(trace.num_sequences()));
        std::iota(all.begin(), all.end(), 0);
        const JudgeTokens tokens = judge_tokens(trace, all, cluster.num_devices(), seed);
        return judge(plan, trace, tokens, cluster, options, pool);
      });
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
  const Simulation simulation =
      with_pool(threads, [&](ThreadPool& pool) { return simulate(trace, plan, cluster, options, pool); });
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

py::dict compare_trace(const Trace& trace, const Cluster& cluster, const CompareRequest& request,
                       int threads) {
  return dict_of(with_pool(threads, [&](ThreadPool& pool) -> Result<Comparison> {
    const CompareOptions options = GRACE_TRY(compare_options(request, trace));
    return compare(trace, cluster, options, pool);
  }));
}

py::dict dict_of(const LoadComparison& comparison) {
  py::list rows;
  for (const LoadRow& row : comparison.rows) {
    py::dict means, one;
    means["load_max_over_mean"] = row.figures.max_over_mean;
    means["load_std"] = row.figures.deviation_of_mean;
    means["slots_per_device_max"] = row.figures.fullest;
    means["copies_per_layer"] = row.figures.replicas;
    means["second_copies_moved"] = row.second_copies_moved;
    means["plan_seconds"] = row.plan_seconds;
    one["name"] = row.name;
    one["slots"] = row.slots;
    one["lossy"] = false;
    one["mean"] = means;
    one["deviation"] = py::dict();
    rows.append(one);
  }
  py::dict result;
  result["rows"] = rows;
  result["measure"] = "load_max_over_mean";
  result["best"] = comparison.best;
  result["recommended"] = comparison.recommended;
  result["recommendation"] = comparison.recommendation;
  return result;
}

// From loads alone there are no splits, and no shape matters.
py::dict compare_of_loads(const LoadProfile& loads, const Cluster& cluster, const CompareRequest& request,
                          int threads) {
  return dict_of(with_pool(threads, [&](ThreadPool& pool) -> Result<LoadComparison> {
    std::vector<std::string> names = split_at_commas(request.strategies);
    if (names.empty())
      for (const std::string_view name : load_strategy_names()) names.emplace_back(name);
    std::vector<SlotsSpec> budgets = {SlotsSpec{}};
    if (!request.slots.empty()) budgets = GRACE_TRY(parse_slots(request.slots));
    PlanOptions options;
    options.seed = request.seed;
    return compare_loads(loads, cluster, names, budgets, options, pool);
  }));
}

}  // namespace

void bind_planning(py::module_& module) {
  const auto names_of = [](const std::vector<std::string_view>& names) {
    return std::vector<std::string>(names.begin(), names.end());
  };
  module.attr("strategies") = names_of(strategy_names());
  module.attr("load_strategies") = names_of(load_strategy_names());
  module.attr("known_shapes") = names_of(known_shapes());
  py::class_<PlanRequest>(module, "PlanRequest")
      .def(py::init<>())
      .def_readwrite("strategy", &PlanRequest::strategy)
      .def_readwrite("slots", &PlanRequest::slots)
      .def_readwrite("memory_bytes", &PlanRequest::memory_bytes)
      .def_readwrite("shape", &PlanRequest::shape)
      .def_readwrite("r", &PlanRequest::r)
      .def_readwrite("effort", &PlanRequest::effort)
      .def_readwrite("partners", &PlanRequest::partners)
      .def_readwrite("batch", &PlanRequest::batch)
      .def_readwrite("seed", &PlanRequest::seed);
  py::class_<CompareRequest>(module, "CompareRequest")
      .def(py::init<>())
      .def_readwrite("strategies", &CompareRequest::strategies)
      .def_readwrite("slots", &CompareRequest::slots)
      .def_readwrite("shape", &CompareRequest::shape)
      .def_readwrite("splits", &CompareRequest::splits)
      .def_readwrite("batch", &CompareRequest::batch)
      .def_readwrite("effort", &CompareRequest::effort)
      .def_readwrite("seed", &CompareRequest::seed);
  module.def("plan_trace", &plan_trace);
  module.def("plan_loads", &plan_loads);
  module.def("vanilla_plan", [](const std::string& model, int num_experts, const std::vector<int>& layers,
                                const Cluster& cluster) {
    if (num_experts < 1)
      throw py::value_error("num_experts: " + std::to_string(num_experts) + " is less than 1");
    return vanilla_plan(model, num_experts, layers, cluster);
  });
  module.def("evaluate_trace", &evaluate_trace);
  module.def("evaluate_loads", &evaluate_loads);
  module.def("simulate", &simulate_trace);
  module.def("compare_trace", &compare_trace);
  module.def("compare_loads", &compare_of_loads);
}

}  // namespace grace::python
