// grace calibrate: ranks in, a cluster file of what they reach out.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <thread>

#include "bench_page.h"
#include "calibrate.h"
#include "context.h"
#include "grace/comm/mpi/mpi_transport.h"
#include "grace/files/json_file.h"
#include "grace/report/report.h"
#include "launch.h"
#include "progress.h"

namespace grace::app {
namespace {

struct Flags {
  std::string out, cluster, transport, hosts;
  std::string dtype = "f32", kernels = "auto";
  int ranks = 0, threads = 1;
  double seconds = 8, deadline_s = kDefaultDeadlineS;
  bool json = false;
};

constexpr double kMostSeconds = 3600;
constexpr double kUnsteady = 0.5;  // quartiles that far apart say little

Status check_flags(const Flags& flags) {
  if (flags.ranks != 0 && (flags.ranks < 2 || flags.ranks > kMaxDevices))
    return invalid_input(fmt::format("--ranks: {} is outside [2, {}]", flags.ranks, kMaxDevices));
  if (flags.threads < 1 || flags.threads > 1024)
    return invalid_input(fmt::format("--threads: {} is outside [1, 1024]", flags.threads));
  if (!(flags.seconds > 0 && flags.seconds <= kMostSeconds))
    return invalid_input(fmt::format("--seconds: {} is outside (0, {}]", flags.seconds, kMostSeconds));
  return {};
}

// How many ranks there are to be. Nothing said: as many as mpirun or the hostfile has, else one for each
// core.
Result<int> num_ranks(const Flags& flags, const std::optional<Cluster>& shape, bool mpi) {
  const int devices = shape.has_value() ? shape->num_devices() : 0;
  if (devices == 1) return invalid_input("--cluster: 1 device has no link to measure, at least 2 have");
  if (flags.ranks > 0 && devices > 0 && flags.ranks != devices)
    return invalid_input(
        fmt::format("--ranks: {}, but the cluster {} has {} devices", flags.ranks, flags.cluster, devices));
  if (flags.ranks > 0 || devices > 0) return std::max(flags.ranks, devices);
  if (mpi && (inside_mpi() || !flags.hosts.empty())) return 0;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 2, kMaxDevices);
}

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

std::string rate_text(double per_s, std::string_view unit) {
  constexpr std::string_view kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  std::size_t prefix = 0;
  for (; per_s >= 1000 && prefix + 1 < std::size(kPrefixes); ++prefix) per_s /= 1000;
  return fmt::format("{:.3g} {}{}/s", per_s, kPrefixes[prefix], unit);
}

bool is_one_host_as_nodes(const Calibration& c) { return c.num_hosts() == 1 && c.cluster.num_nodes() > 1; }

std::string shape_text(const Cluster& cluster) {
  std::vector<int> sizes;
  for (const auto& node : cluster.devices_of_node) sizes.push_back(static_cast<int>(node.size()));
  if (std::ranges::count(sizes, sizes.front()) == std::ssize(sizes))
    return fmt::format("{}x{}", sizes.size(), sizes.front());
  return fmt::format("nodes of {}", fmt::join(sizes, ", "));
}

// What the figures are of and what they are not, a sentence each.
std::vector<std::string> notes_of(const Calibration& c, int threads) {
  std::vector<std::string> notes;
  if (is_one_host_as_nodes(c))
    notes.push_back(
        fmt::format("All {} ranks are on one machine: what lies between its \"nodes\" is this machine's "
                    "memory, not a network.",
                    c.host_of.size()));
  const auto here = static_cast<int>(std::ranges::count(c.host_of, c.host_of.front()));
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  if (cores > 0 && here * threads > cores)
    notes.push_back(fmt::format("{} ranks of {} thread{} share {} cores: all figures are of their shares.",
                                here, threads, threads == 1 ? "" : "s", cores));
  const auto is_unsteady = [](const MeasuredExchange& e) { return e.seconds.spread > kUnsteady; };
  if (std::ranges::any_of(c.exchanges, is_unsteady) || c.flops_per_s.spread > kUnsteady ||
      c.memory_bytes_per_s.spread > kUnsteady)
    notes.push_back(
        fmt::format("Spreads above {}: something else is running here, or the machine is not steady.",
                    percent(kUnsteady)));
  if (c.cluster.num_nodes() == 1)
    notes.emplace_back("One node: between nodes stands what is between devices.");
  if (!c.between_devices.has_value())
    notes.emplace_back("Every node has one device: between devices stands what is between nodes.");
  return notes;
}

std::string speeds_text(const Calibration& c) {
  if (c.rounds < kLeastRoundsForSpeeds)
    return fmt::format("{} rounds are too few to tell slow devices from noise; --seconds gives it more.",
                       c.rounds);
  const Cluster& cluster = c.cluster;
  std::vector<std::string> others;
  for (int d = 0; d < cluster.num_devices(); ++d)
    if (cluster.device(DeviceId(d)).speed != 1)
      others.push_back(fmt::format("device {} at {:g}", d, cluster.device(DeviceId(d)).speed));
  if (others.empty()) return "No device differs from the median one by more than noise.";
  return fmt::format("Of the median device's speed: {}; the others do not differ by more than noise.",
                     fmt::join(others, ", "));
}

report::Table table_of(const Calibration& c, const Flags& flags) {
  report::Table table;
  table.columns = {"", "latency", "spread", "rate", "spread"};
  const auto add_link = [&](std::string_view name, const std::optional<LinkFit>& fit) {
    if (!fit.has_value()) return;
    table.rows.push_back({std::string(name), fmt::format("{:.3g} us", fit->link.latency_s * 1e6),
                          percent(fit->latency_spread), rate_text(fit->link.bytes_per_s, "B"),
                          percent(fit->rate_spread)});
  };
  add_link("between devices, all at once", c.between_devices);
  add_link("between nodes, all at once", c.between_nodes);
  add_link("one message between two devices", c.two_devices);
  add_link("one message between two nodes", c.two_nodes);
  table.rows.push_back({fmt::format("expert kernels, {}", flags.dtype), "", "",
                        rate_text(c.flops_per_s.value, "FLOP"), percent(c.flops_per_s.spread)});
  table.rows.push_back({"experts' weights from memory", "", "", rate_text(c.memory_bytes_per_s.value, "B"),
                        percent(c.memory_bytes_per_s.spread)});
  return table;
}

Json json_of(const std::optional<LinkFit>& fit) {
  if (!fit.has_value()) return nullptr;
  return {{"latency_s", fit->link.latency_s},
          {"latency_spread", fit->latency_spread},
          {"bytes_per_s", fit->link.bytes_per_s},
          {"rate_spread", fit->rate_spread}};
}
Json json_of(const Figure& figure) { return {{"value", figure.value}, {"spread", figure.spread}}; }

Json json_of(const Calibration& c, const Flags& flags, bool mpi) {
  Json exchanges = Json::array();
  for (const MeasuredExchange& exchange : c.exchanges)
    exchanges.push_back({{"between", exchange.name},
                         {"bytes", exchange.bytes},
                         {"seconds", exchange.seconds.value},
                         {"spread", exchange.seconds.spread}});
  Json speeds = Json::array();
  for (const auto& node : c.cluster.devices_of_node)
    for (const Device& device : node) speeds.push_back(device.speed);
  return {{"cluster", flags.out},
          {"shape", shape_text(c.cluster)},
          {"ranks", c.host_of.size()},
          {"hosts", c.num_hosts()},
          {"threads", flags.threads},
          {"dtype", flags.dtype},
          {"transport", mpi ? "mpi" : "in_process"},
          {"machine", machine_name()},
          {"nodes_are_one_machine", is_one_host_as_nodes(c)},
          {"rounds", c.rounds},
          {"seconds", c.seconds},
          {"between_devices", json_of(c.between_devices)},
          {"between_nodes", json_of(c.between_nodes)},
          {"two_devices", json_of(c.two_devices)},
          {"two_nodes", json_of(c.two_nodes)},
          {"flops_per_s", json_of(c.flops_per_s)},
          {"memory_bytes_per_s", json_of(c.memory_bytes_per_s)},
          {"speeds", speeds},
          {"exchanges", exchanges},
          {"notes", notes_of(c, flags.threads)}};
}

Result<int> run(const Flags& flags, const Context& context) {
  GRACE_TRY(check_flags(flags));
  const bool mpi = GRACE_TRY(uses_mpi(flags.transport));
  CalibrateOptions options;
  options.seconds = flags.seconds;
  options.arithmetic.numbers = GRACE_TRY(kernels::find_numbers(flags.dtype));
  options.arithmetic.instructions = GRACE_TRY(kernels::find_instructions(flags.kernels));
  if (!flags.cluster.empty()) options.shape = GRACE_TRY(parse_cluster(flags.cluster));
  const int size = GRACE_TRY(num_ranks(flags, options.shape, mpi));
  Ranks ranks = GRACE_TRY(Ranks::make({.size = size,
                                       .mpi = mpi,
                                       .hosts = flags.hosts,
                                       .threads = flags.threads,
                                       .deadline_s = flags.deadline_s},
                                      context));
  Progress progress("calibrate");
  Calibration result;
  const auto body = [&](Transport& transport, ThreadPool& pool) -> Status {
    const bool shows = transport.rank() == 0;
    Calibration mine =
        GRACE_TRY(calibrate(transport, pool, options, [&](std::int64_t done, std::int64_t total) {
          if (shows) progress(done, total);
        }));
    if (ranks.keeps(transport)) result = std::move(mine);
    return {};
  };
  GRACE_TRY(ranks.run(body));
  if (!ranks.speaks()) return 0;
  result.cluster.name = fmt::format("{} measured over {}, {} of {}", shape_text(result.cluster),
                                    mpi ? "mpi" : "threads of one process",
                                    result.num_hosts() == 1 ? "one machine" : "machines", machine_name());
  GRACE_TRY(write_cluster(flags.out, result.cluster));
  if (flags.json) {
    print_json(json_of(result, flags, mpi));
    return 0;
  }
  print(report::terminal_table(table_of(result, flags)));
  for (const std::string& note : notes_of(result, flags.threads)) print(note + "\n");
  print(speeds_text(result) + "\n");
  print(fmt::format("{}: written; {}, {} rounds in {:.1f} s\n", flags.out, result.cluster.name, result.rounds,
                    result.seconds));
  return 0;
}

}  // namespace

void add_calibrate(CLI::App& app, Context& context) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "calibrate",
      "Measures the links and the compute of this machine, or of an MPI job, into a cluster file.");
  command->add_option("--out", flags->out, "the cluster file")->required();
  command->add_option("--cluster", flags->cluster,
                      "NODESxDEVICES laid over the ranks (default: the ranks of one host are a node)");
  command->add_option(
      "--ranks", flags->ranks,
      "ranks to measure with (default: all that mpirun or the hostfile has, else one a core)");
  command->add_option("--transport", flags->transport, "in_process (ranks are threads, the default) or mpi");
  command->add_option("--hosts", flags->hosts,
                      "an mpirun hostfile; without it everything is on this machine");
  add_deadline(*command, flags->deadline_s);
  command->add_option("--threads", flags->threads, "threads of each rank (default 1)");
  command->add_option("--dtype", flags->dtype,
                      "what experts are calculated with, as of run: f32 (default), bf16 or int8");
  command->add_option("--kernels", flags->kernels, "the instructions they use, as of run (default auto)");
  command->add_option("--seconds", flags->seconds, "how long to measure (default 8; three rounds at least)");
  command->add_flag("--json", flags->json, "one JSON value");
  command->footer("Example:\n  grace calibrate --out out/here.json --transport mpi --ranks 2");
  command->callback(
      [flags, &context] { context.action = [flags, &context] { return run(*flags, context); }; });
}

}  // namespace grace::app
