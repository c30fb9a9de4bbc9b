#include "bind.h"
#include "grace/interop/exporter.h"
#include "grace/interop/importer.h"
#include "grace/replication/eplb_drop_in.h"

namespace grace::python {
namespace {

py::dict import_recording(const std::vector<std::filesystem::path>& files, const std::filesystem::path& out,
                          const std::string& format, const std::string& model, int num_experts,
                          int experts_per_token, std::vector<int> decoder_layers, int dense_layers,
                          int same_tokens, const std::string& phase) {
  ImportOptions options;
  options.format = format;
  options.model = model;
  options.num_experts = num_experts;
  options.experts_per_token = experts_per_token;
  options.decoder_layers = std::move(decoder_layers);
  options.dense_layers = dense_layers;
  options.same_tokens = same_tokens;
  if (phase != "prefill" && phase != "decode")
    throw py::value_error("phase: '" + phase + "' is neither prefill nor decode");
  options.phase = phase == "decode" ? Phase::kDecode : Phase::kPrefill;
  bool interrupted = false;
  options.progress = [&interrupted](std::int64_t, std::int64_t) {
    const py::gil_scoped_acquire acquire;
    interrupted = PyErr_CheckSignals() != 0;
    return !interrupted;
  };
  Result<ImportSummary> imported = unlocked([&] { return import_files(files, out, options); });
  if (interrupted) throw py::error_already_set();
  const ImportSummary summary = value_or_raise(std::move(imported));
  py::dict result;
  result["format"] = summary.format;
  result["has_tokens"] = summary.has_tokens;
  result["num_experts"] = summary.num_experts;
  result["experts_per_token"] = summary.experts_per_token;
  result["moe_layers"] = summary.moe_layers;
  result["tokens"] = summary.tokens;
  result["sequences"] = summary.sequences;
  result["assignments"] = summary.assignments;
  result["not_routed"] = summary.not_routed;
  result["tokens_left_out"] = summary.tokens_left_out;
  result["warnings"] = summary.warnings;
  return result;
}

py::dict export_placement(const Plan& plan, const std::string& to, const std::filesystem::path& out,
                          int slots_per_device, int num_decoder_layers, int mtp_layers) {
  const ExportedPlan written = value_or_raise(unlocked([&] {
    return export_plan(plan, {to, out, slots_per_device, {}, nullptr, {num_decoder_layers, mtp_layers}});
  }));
  py::dict result;
  result["start_with"] = written.file.start_with;
  result["notes"] = written.file.notes;
  result["slots_per_device"] = written.even.padding.slots_per_device;
  result["copies_added"] = written.even.padding.added;
  result["memory_factor"] = written.even.padding.memory_factor;
  return result;
}

Plan read_engine_placement(const std::filesystem::path& path, const std::string& format,
                           std::vector<int> devices_per_node, const std::string& model, int num_experts,
                           std::vector<int> decoder_layers) {
  PlacementOptions options;
  options.format = format;
  options.num_experts = num_experts;
  options.decoder_layers = std::move(decoder_layers);
  for (const int devices : devices_per_node) options.num_devices += devices;
  return value_or_raise(import_placement(path, options, model, std::move(devices_per_node))).plan;
}

// weight: [L, E] of double; coactivation: [L, E, E] of double, or None.
py::tuple rebalance(const py::buffer& weight, std::int64_t num_replicas, std::int64_t num_groups,
                    std::int64_t num_nodes, std::int64_t num_gpus, const py::object& coactivation,
                    int threads) {
  const py::buffer_info info = weight.request();
  if (info.ndim != 2) throw py::value_error("weight: not of shape [layers, experts]");
  const std::span<const double> values = values_of<double>(info, "weight");
  const EplbArguments arguments{info.shape[0], info.shape[1], num_replicas, num_groups, num_nodes, num_gpus};
  py::buffer_info together;
  std::span<const double> pairs;
  if (!coactivation.is_none()) {
    together = coactivation.cast<py::buffer>().request();
    pairs = values_of<double>(together, "coactivation");
    if (together.ndim != 3 || together.shape[0] != info.shape[0] || together.shape[1] != info.shape[1] ||
        together.shape[2] != info.shape[1])
      throw py::value_error("coactivation: not of shape [layers, experts, experts]");
  }
  const int count = value_or_raise(threads_for(threads));
  EplbMaps maps = value_or_raise(unlocked([&] {
    ThreadPool pool(count);
    return together.ptr == nullptr ? eplb_rebalance(values, arguments, pool)
                                   : eplb_rebalance(values, pairs, arguments, pool);
  }));
  const py::ssize_t layers = info.shape[0], experts = info.shape[1];
  return py::make_tuple(array_of(std::move(maps.physical_to_logical), {layers, num_replicas}),
                        array_of(std::move(maps.logical_to_physical), {layers, experts, maps.most_copies}),
                        array_of(std::move(maps.expert_count), {layers, experts}));
}

}  // namespace

void bind_interop(py::module_& module) {
  std::vector<std::pair<std::string, std::string>> reads, writes;
  for (const Importer& importer : importers()) reads.emplace_back(importer.name, importer.reads);
  for (const Exporter& exporter : exporters())
    if (exporter.write != nullptr) writes.emplace_back(exporter.name, exporter.writes);
  module.attr("importers") = reads;
  module.attr("exporters") = writes;
  module.def("import_recording", &import_recording);
  module.def("export_placement", &export_placement);
  module.def("read_placement", &read_engine_placement);
  module.def("rebalance", &rebalance);
}

}  // namespace grace::python
