#include <algorithm>

#include "bind.h"
#include "grace/affinity/load_profile.h"
#include "grace/cluster/cluster.h"
#include "grace/interop/slot_map.h"
#include "grace/plan/plan.h"
#include "grace/trace/trace.h"

namespace grace::python {
namespace {

constexpr const char* kPhaseNames[] = {"prefill", "decode", "mixed"};

Phase phase_of(const std::string& name) {
  for (int i = 0; i < 3; ++i)
    if (name == kPhaseNames[i]) return static_cast<Phase>(i);
  throw py::value_error("phase: '" + name + "' is none of prefill, decode and mixed");
}

template <typename Thing>
Thing sound(Thing thing) {
  if (const std::vector<std::string> faults = violations(thing); !faults.empty())
    throw py::value_error(faults.front());
  return thing;
}

// topk_ids: [T, M, K] of int64, negative: not routed.
Trace make_trace(const py::buffer& topk_ids, int num_experts, std::vector<int> decoder_layers,
                 std::vector<std::int64_t> sequence_offsets, const std::string& model,
                 const std::string& source, const std::string& phase,
                 std::vector<std::int64_t> prompt_lengths, const py::object& topk_weights) {
  const py::buffer_info ids = topk_ids.request();
  if (ids.ndim != 3) throw py::value_error("topk_ids: not of shape [tokens, layers, experts per token]");
  Trace trace;
  trace.model = model;
  trace.source = source;
  trace.num_experts = num_experts;
  trace.experts_per_token = static_cast<int>(ids.shape[2]);
  trace.decoder_layers = std::move(decoder_layers);
  trace.phase = phase_of(phase);
  trace.sequence_offsets = std::move(sequence_offsets);
  trace.prompt_lengths = std::move(prompt_lengths);
  const std::span<const std::int64_t> values = values_of<std::int64_t>(ids, "topk_ids");
  trace.topk_ids.reserve(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= kNotRouted)
      throw py::value_error("topk_ids: " + std::to_string(values[i]) + " is outside [-1, 65535)");
    trace.topk_ids.push_back(values[i] < 0 ? kNotRouted : static_cast<std::uint16_t>(values[i]));
  }
  if (!topk_weights.is_none()) {
    const py::buffer_info weights = topk_weights.cast<py::buffer>().request();
    const std::span<const float> of = values_of<float>(weights, "topk_weights");
    trace.topk_weights.assign(of.begin(), of.end());
  }
  return sound(std::move(trace));
}

Array ids_of(const Trace& trace) {
  std::vector<std::int32_t> ids(trace.topk_ids.size());
  std::ranges::transform(trace.topk_ids, ids.begin(),
                         [](std::uint16_t id) { return id == kNotRouted ? -1 : std::int32_t{id}; });
  return array_of(std::move(ids), {trace.num_tokens(), trace.num_moe_layers(), trace.experts_per_token});
}

py::object weights_of(const Trace& trace) {
  if (trace.topk_weights.empty()) return py::none();
  return py::cast(array_of(std::vector<float>(trace.topk_weights),
                           {trace.num_tokens(), trace.num_moe_layers(), trace.experts_per_token}));
}

LoadProfile make_profile(const py::buffer& loads, std::vector<int> decoder_layers, int experts_per_token,
                         const std::string& model, const std::string& source) {
  const py::buffer_info info = loads.request();
  if (info.ndim != 2) throw py::value_error("loads: not of shape [layers, experts]");
  const std::span<const std::int64_t> values = values_of<std::int64_t>(info, "loads");
  LoadProfile profile;
  profile.model = model;
  profile.source = source;
  profile.num_experts = static_cast<int>(info.shape[1]);
  profile.experts_per_token = experts_per_token;
  profile.decoder_layers = std::move(decoder_layers);
  const auto experts = static_cast<std::size_t>(info.shape[1]);
  for (std::size_t layer = 0; layer < static_cast<std::size_t>(info.shape[0]); ++layer) {
    const auto row = values.subspan(layer * experts, experts);
    profile.loads.emplace_back(row.begin(), row.end());
  }
  return sound(std::move(profile));
}

Array loads_of(const LoadProfile& profile) {
  std::vector<std::int64_t> loads;
  for (const auto& layer : profile.loads) loads.insert(loads.end(), layer.begin(), layer.end());
  return array_of(std::move(loads), {profile.num_moe_layers(), profile.num_experts});
}

// [M, D, E]: 0 no copy, 1 a replica, 2 the primary.
Array copies_of(const Plan& plan) {
  const auto experts = static_cast<std::size_t>(plan.num_experts);
  const auto devices = static_cast<std::size_t>(plan.num_devices());
  std::vector<std::int32_t> copies(plan.layers.size() * devices * experts, 0);
  for (std::size_t m = 0; m < plan.layers.size(); ++m)
    for (std::size_t d = 0; d < devices; ++d) {
      const auto row = std::span(copies).subspan((m * devices + d) * experts, experts);
      for (const ExpertId e : plan.layers[m].primaries_of_device[d]) row[e.idx()] = 2;
      for (const ExpertId e : plan.layers[m].replicas_of_device[d]) row[e.idx()] = 1;
    }
  return array_of(std::move(copies), {static_cast<py::ssize_t>(plan.layers.size()),
                                      static_cast<py::ssize_t>(devices), static_cast<py::ssize_t>(experts)});
}

py::tuple slots_of(const Plan& plan, int slots_per_device) {
  const EvenPlan even = value_or_raise(even_out(plan, {}, slots_per_device));
  std::vector<std::int64_t> slots;
  for (const auto& layer : even.slots.expert_of_slot) slots.insert(slots.end(), layer.begin(), layer.end());
  return py::make_tuple(array_of(std::move(slots), {plan.num_moe_layers(), even.slots.num_slots()}),
                        even.padding.added, even.padding.memory_factor);
}

// expert_of_slot: [M, P] of int64.
Plan plan_of_slots(const py::buffer& expert_of_slot, int num_experts, std::vector<int> devices_per_node,
                   std::vector<int> decoder_layers, const std::string& model) {
  const py::buffer_info info = expert_of_slot.request();
  if (info.ndim != 2) throw py::value_error("expert_of_slot: not of shape [layers, slots]");
  const std::span<const std::int64_t> values = values_of<std::int64_t>(info, "expert_of_slot");
  SlotMap map;
  map.num_experts = num_experts;
  for (const int devices : devices_per_node) {
    if (devices < 1 || devices > kMaxDevices)
      throw py::value_error("devices_per_node: " + std::to_string(devices) + " is outside [1, 1024]");
    map.num_devices += devices;
  }
  map.decoder_layers = std::move(decoder_layers);
  const auto slots = static_cast<std::size_t>(info.shape[1]);
  for (std::size_t layer = 0; layer < static_cast<std::size_t>(info.shape[0]); ++layer) {
    std::vector<std::int32_t>& row = map.expert_of_slot.emplace_back();
    for (const std::int64_t id : values.subspan(layer * slots, slots))
      row.push_back(static_cast<std::int32_t>(std::clamp<std::int64_t>(id, -2, 1 << 20)));
  }
  return sound(plan_of(sound(std::move(map)), model, std::move(devices_per_node)));
}

void bind_trace(py::module_& module) {
  py::class_<Trace>(module, "Trace")
      .def(py::init(&make_trace), py::arg("topk_ids"), py::arg("num_experts"), py::arg("decoder_layers"),
           py::arg("sequence_offsets"), py::arg("model"), py::arg("source"), py::arg("phase"),
           py::arg("prompt_lengths"), py::arg("topk_weights"))
      .def_static("read",
                  [](const std::filesystem::path& path) {
                    return value_or_raise(unlocked([&] { return read_trace(path); }));
                  })
      .def("write",
           [](const Trace& trace, const std::filesystem::path& path) {
             raise_unless_ok(unlocked([&] { return write_trace(path, trace); }));
           })
      .def_readonly("model", &Trace::model)
      .def_readonly("source", &Trace::source)
      .def_readonly("num_experts", &Trace::num_experts)
      .def_readonly("experts_per_token", &Trace::experts_per_token)
      .def_readonly("decoder_layers", &Trace::decoder_layers)
      .def_property_readonly("phase", [](const Trace& t) { return kPhaseNames[static_cast<int>(t.phase)]; })
      .def_property_readonly("num_tokens", &Trace::num_tokens)
      .def_readonly("prompt_lengths", &Trace::prompt_lengths)
      .def("topk_ids", &ids_of)
      .def("topk_weights", &weights_of)
      .def("sequence_offsets",
           [](const Trace& t) {
             return array_of(std::vector<std::int64_t>(t.sequence_offsets), {t.num_sequences() + 1});
           })
      .def("hash", [](const Trace& t) { return hash_of(t); });
}

void bind_plan(py::module_& module) {
  py::class_<Plan>(module, "Plan")
      .def_static("read", [](const std::filesystem::path& path) { return value_or_raise(read_plan(path)); })
      .def_static("of_slots", &plan_of_slots)
      .def("write", [](const Plan& plan,
                       const std::filesystem::path& path) { raise_unless_ok(write_plan(path, plan)); })
      .def_readonly("model", &Plan::model)
      .def_readonly("num_experts", &Plan::num_experts)
      .def_readonly("decoder_layers", &Plan::decoder_layers)
      .def_readonly("devices_per_node", &Plan::devices_per_node)
      .def_readonly("strategy", &Plan::strategy)
      .def_readonly("routing", &Plan::routing)
      .def_readonly("provenance", &Plan::provenance)
      .def_readonly("figures", &Plan::figures)
      .def_property_readonly("lossy", &Plan::is_lossy)
      .def("copies", &copies_of)
      .def("slots", &slots_of)
      .def("predicted_load", [](const Plan& plan) {
        std::vector<double> loads;
        for (const LayerPlan& layer : plan.layers)
          loads.insert(loads.end(), layer.predicted_load.begin(), layer.predicted_load.end());
        return array_of(std::move(loads), {plan.num_moe_layers(), plan.num_devices()});
      });
}

}  // namespace

void bind_data(py::module_& module) {
  bind_trace(module);
  py::class_<LoadProfile>(module, "LoadProfile")
      .def(py::init(&make_profile))
      .def_static("read",
                  [](const std::filesystem::path& path) { return value_or_raise(read_load_profile(path)); })
      .def_static("of_trace",
                  [](const Trace& trace) { return unlocked([&] { return load_profile_of(trace); }); })
      .def("write",
           [](const LoadProfile& profile, const std::filesystem::path& path) {
             raise_unless_ok(write_load_profile(path, profile));
           })
      .def_readonly("model", &LoadProfile::model)
      .def_readonly("source", &LoadProfile::source)
      .def_readonly("num_experts", &LoadProfile::num_experts)
      .def_readonly("experts_per_token", &LoadProfile::experts_per_token)
      .def_readonly("decoder_layers", &LoadProfile::decoder_layers)
      .def("loads", &loads_of);
  py::class_<Cluster>(module, "Cluster")
      .def(py::init([](const std::string& spec) { return value_or_raise(parse_cluster(spec)); }))
      .def("write", [](const Cluster& cluster,
                       const std::filesystem::path& path) { raise_unless_ok(write_cluster(path, cluster)); })
      .def_readonly("name", &Cluster::name)
      .def_property_readonly("num_devices", &Cluster::num_devices)
      .def_property_readonly("devices_per_node", [](const Cluster& cluster) {
        std::vector<int> sizes;
        for (const auto& node : cluster.devices_of_node) sizes.push_back(static_cast<int>(node.size()));
        return sizes;
      });
  bind_plan(module);
}

}  // namespace grace::python
