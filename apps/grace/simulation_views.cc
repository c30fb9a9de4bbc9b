#include "simulation_views.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

#include "grace/files/json_file.h"
#include "grace/sim/spans.h"

namespace grace::app {
namespace {

std::string ms(double seconds) { return fmt::format("{:.3f}", seconds * 1e3); }
std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

struct Bytes {
  std::int64_t cross_node = 0, intra_node = 0;
};

Bytes bytes_of(const LayerSimulation& layer, const LayerSizes& sizes) {
  const auto bytes = static_cast<std::int64_t>(sizes.vector_bytes());
  return {(layer.cross_node_vectors + layer.cross_node_results) * bytes,
          (layer.intra_node_vectors + layer.intra_node_results) * bytes};
}

Bytes bytes_of(const Simulation& simulation, const LayerSizes& sizes) {
  Bytes sum;
  for (const LayerSimulation& layer : simulation.layers) {
    const Bytes of_layer = bytes_of(layer, sizes);
    sum.cross_node += of_layer.cross_node;
    sum.intra_node += of_layer.intra_node;
  }
  return sum;
}

Figures mean_figures(const Simulation& simulation) {
  std::vector<Figures> figures;
  for (const LayerSimulation& layer : simulation.layers)
    if (layer.passes > 0) figures.push_back(layer.figures);
  return mean_of(figures);
}

struct DeviceSum {
  double compute_s = 0;
  double idle_s = 0;  // behind the slowest of each layer
  std::int64_t load = 0;
};

std::vector<DeviceSum> device_sums(const Simulation& simulation) {
  std::vector<DeviceSum> sums(simulation.layers.empty() ? 0 : simulation.layers.front().load.size());
  for (const LayerSimulation& layer : simulation.layers)
    for (std::size_t d = 0; d < sums.size(); ++d) {
      sums[d].compute_s += layer.compute_of_device_s[d];
      sums[d].idle_s += layer.time().compute_s - layer.compute_of_device_s[d];
      sums[d].load += layer.load[d];
    }
  return sums;
}

std::string batch_of(const SimulationSetup& setup) {
  if (setup.workload.prefill > 0)
    return fmt::format("{} prompts of {} tokens, {} new ones of each", setup.batch, setup.workload.prefill,
                       setup.workload.decode);
  return setup.batch == 0 || setup.batch >= setup.num_sequences
             ? fmt::format("one batch of {} sequences", setup.num_sequences)
             : fmt::format("batches of {} of {} sequences", setup.batch, setup.num_sequences);
}

Json json_of(const LayerTime& time) {
  return {{"cross_node", time.cross_node_s}, {"intra_node", time.intra_node_s},
          {"latency", time.latency_s},       {"all_to_all", time.all_to_all_s()},
          {"compute", time.compute_s},       {"mean_compute", time.mean_compute_s},
          {"idle", time.idle_s()},           {"layer_time", time.total_s()}};
}

Json json_of(const PhaseTime& phase) {
  return {{"passes", phase.passes},
          {"tokens", phase.tokens},
          {"moe", json_of(phase.moe)},
          {"router_and_shared_experts", phase.beside_experts_s},
          {"attention", phase.attention_s},
          {"dense_ffn", phase.dense_ffn_s},
          {"head", phase.head_s},
          {"end_to_end", phase.total_s()},
          {"tokens_per_s", phase.total_s() > 0 ? static_cast<double>(phase.tokens) / phase.total_s() : 0},
          {"all_to_all_of_moe_layers", phase.all_to_all_of_moe_layers()},
          {"all_to_all_of_whole", phase.all_to_all_of_whole()}};
}

Json json_of(const Figures& figures) {
  return {{"remote_nodes_per_token", figures.remote_nodes_per_token},
          {"forwards_per_token", figures.forwards_per_token},
          {"devices_per_token", figures.devices_per_token},
          {"load_max_over_mean", figures.load_max_over_mean},
          {"load_std", figures.load_std},
          {"judge_slow", figures.judge(kSlowYardstick)},
          {"judge_fast", figures.judge(kFastYardstick)},
          {"layer_time", figures.time.total_s()},
          {"all_to_all", figures.time.all_to_all_s()},
          {"idle", figures.time.idle_s()}};
}

void add_bytes(Json& json, const Bytes& bytes) {
  json["bytes_cross_node"] = bytes.cross_node;
  json["bytes_intra_node"] = bytes.intra_node;
}

}  // namespace

report::Table summary_table(const Simulation& simulation, const SimulationSetup& setup) {
  report::Table table{fmt::format("Simulated: {} of {} on {}, {}, {} results, {}", setup.plan, setup.shape,
                                  setup.cluster, setup.dispatch, setup.combine, batch_of(setup)),
                      {"", "prefill", "decode", "whole"},
                      {}};
  const PhaseTime whole = simulation.whole();
  const auto row = [&](const char* name, auto&& value) {
    table.rows.push_back({name, value(simulation.prefill), value(simulation.decode), value(whole)});
  };
  row("passes", [](const PhaseTime& p) { return std::to_string(p.passes); });
  row("tokens", [](const PhaseTime& p) { return std::to_string(p.tokens); });
  row("end to end, ms", [](const PhaseTime& p) { return ms(p.total_s()); });
  row("  MoE layers, ms", [](const PhaseTime& p) { return ms(p.moe_layers_s()); });
  row("    all-to-all, ms", [](const PhaseTime& p) { return ms(p.moe.all_to_all_s()); });
  row("      across nodes, ms", [](const PhaseTime& p) { return ms(p.moe.cross_node_s); });
  row("      inside nodes, ms", [](const PhaseTime& p) { return ms(p.moe.intra_node_s); });
  row("      latencies, ms", [](const PhaseTime& p) { return ms(p.moe.latency_s); });
  row("    experts, ms", [](const PhaseTime& p) { return ms(p.moe.compute_s); });
  row("      of it idle (mean device), ms", [](const PhaseTime& p) { return ms(p.moe.idle_s()); });
  row("    router and shared experts, ms", [](const PhaseTime& p) { return ms(p.beside_experts_s); });
  row("  attention, ms", [](const PhaseTime& p) { return ms(p.attention_s); });
  row("  dense FFN, ms", [](const PhaseTime& p) { return ms(p.dense_ffn_s); });
  row("  head, ms", [](const PhaseTime& p) { return ms(p.head_s); });
  row("all-to-all of MoE layers", [](const PhaseTime& p) { return percent(p.all_to_all_of_moe_layers()); });
  row("all-to-all of the whole", [](const PhaseTime& p) { return percent(p.all_to_all_of_whole()); });
  return table;
}

report::Table layer_table(const Simulation& simulation, const SimulationSetup& setup) {
  const Bytes bytes = bytes_of(simulation, setup.sizes);
  report::Table table{fmt::format("MoE layers; bytes there and back: {} across nodes, {} inside",
                                  bytes.cross_node, bytes.intra_node),
                      {"decoder layer", "remote nodes/token", "devices/token", "max/mean", "load std",
                       "all-to-all, ms", "experts, ms", "idle, ms"},
                      {}};
  const auto row = [&](std::string name, const Figures& f, const LayerTime& time) {
    table.rows.push_back({std::move(name), fmt::format("{:.3f}", f.remote_nodes_per_token),
                          fmt::format("{:.3f}", f.devices_per_token),
                          fmt::format("{:.3f}", f.load_max_over_mean), percent(f.load_std),
                          ms(time.all_to_all_s()), ms(time.compute_s), ms(time.idle_s())});
  };
  for (std::size_t m = 0; m < simulation.layers.size(); ++m)
    row(std::to_string(setup.moe_decoder_layers[m]), simulation.layers[m].figures,
        simulation.layers[m].time());
  row("mean; sum of times", mean_figures(simulation), simulation.whole().moe);
  return table;
}

report::Table device_table(const Simulation& simulation) {
  report::Table table{"Devices, over all layers and passes",
                      {"device", "experts, ms", "idle, ms", "assignments", "share"},
                      {}};
  const std::vector<DeviceSum> sums = device_sums(simulation);
  std::int64_t total = 0;
  for (const DeviceSum& sum : sums) total += sum.load;
  for (std::size_t d = 0; d < sums.size(); ++d)
    table.rows.push_back(
        {std::to_string(d), ms(sums[d].compute_s), ms(sums[d].idle_s), std::to_string(sums[d].load),
         percent(total > 0 ? static_cast<double>(sums[d].load) / static_cast<double>(total) : 0)});
  return table;
}

Json json_of(const Simulation& simulation, const SimulationSetup& setup) {
  Json json = {{"strategy", setup.plan},
               {"shape", setup.shape},
               {"cluster", setup.cluster},
               {"dispatch", setup.dispatch},
               {"combine", setup.combine},
               {"batch_sequences", setup.batch},
               {"bytes_per_value", setup.sizes.bytes_per_value},
               {"bytes_per_weight", setup.sizes.bytes_per_weight},
               {"moe_layers_left_out", setup.left_out}};
  if (setup.workload.prefill > 0)
    json["workload"] = {{"prefill", setup.workload.prefill}, {"decode", setup.workload.decode}};
  json.update(json_of(mean_figures(simulation)));
  add_bytes(json, bytes_of(simulation, setup.sizes));
  json["prefill"] = json_of(simulation.prefill);
  json["decode"] = json_of(simulation.decode);
  json["whole"] = json_of(simulation.whole());
  Json layers = Json::array();
  for (std::size_t m = 0; m < simulation.layers.size(); ++m) {
    const LayerSimulation& layer = simulation.layers[m];
    Json one = {{"decoder_layer", setup.moe_decoder_layers[m]}, {"passes", layer.passes}};
    one.update(json_of(layer.figures));
    add_bytes(one, bytes_of(layer, setup.sizes));
    one["time"] = json_of(layer.time());
    one["compute_of_device"] = layer.compute_of_device_s;
    one["load_of_device"] = layer.load;
    layers.push_back(std::move(one));
  }
  json["layers"] = std::move(layers);
  Json devices = Json::array();
  for (const DeviceSum& sum : device_sums(simulation))
    devices.push_back({{"compute", sum.compute_s}, {"idle", sum.idle_s}, {"load", sum.load}});
  json["devices"] = std::move(devices);
  return json;
}

namespace {

struct Wire {
  LevelBytes dispatch, combine;
};

Wire wire_of(const Replay& replay) {
  Wire wire;
  for (const LayerReplay& layer : replay.layers) {
    wire.dispatch += layer.traffic.dispatch;
    wire.combine += layer.traffic.combine;
  }
  return wire;
}

Json json_of(const LevelBytes& bytes) {
  return {{"intra_node_payload", bytes.intra_node_payload},
          {"cross_node_payload", bytes.cross_node_payload},
          {"intra_node_header", bytes.intra_node_header},
          {"cross_node_header", bytes.cross_node_header}};
}

}  // namespace

report::Table wire_table(const Replay& replay) {
  const Wire wire = wire_of(replay);
  report::Table table{"Bytes of exact mode, as the runtime counts them",
                      {"", "across nodes", "headers", "inside nodes", "headers"},
                      {}};
  for (const auto& [name, bytes] : {std::pair{"dispatch", wire.dispatch}, std::pair{"combine", wire.combine}})
    table.rows.push_back({name, std::to_string(bytes.cross_node_payload),
                          std::to_string(bytes.cross_node_header), std::to_string(bytes.intra_node_payload),
                          std::to_string(bytes.intra_node_header)});
  return table;
}

Json json_of(const Replay& replay) {
  const Wire wire = wire_of(replay);
  return {{"dispatch", json_of(wire.dispatch)}, {"combine", json_of(wire.combine)}};
}

report::Timeline timeline_of(const Simulation& simulation, const ModelPrice& model,
                             const SimulationSetup& setup, std::size_t max_spans, bool names_layers) {
  const SimulatedSpans drawn = spans_of(simulation, model, max_spans);
  report::Timeline timeline;
  timeline.title =
      fmt::format("Simulated: {} of {} on {}, {}", setup.plan, setup.shape, setup.cluster, setup.dispatch);
  timeline.note = fmt::format(
      "The first prefill pass and the first decode passes, {} in all{}. Every part begins when the slowest "
      "device has ended the one before.",
      simulation.records.size(), drawn.all ? "" : fmt::format("; cut after {} bars", drawn.spans.size()));
  const std::size_t devices = simulation.layers.empty() ? 0 : simulation.layers.front().load.size();
  for (std::size_t d = 0; d < devices; ++d) timeline.lanes.push_back(fmt::format("device {}", d));
  for (const SimulatedSpan& span : drawn.spans) {
    std::string name(name_of(span.part));
    if (names_layers && span.layer >= 0)
      name += fmt::format(", layer {}", setup.simulated_decoder_layers[static_cast<std::size_t>(span.layer)]);
    timeline.spans.push_back({span.device, span.begin_s, span.end_s, std::move(name)});
  }
  return timeline;
}

}  // namespace grace::app
