#include "kernel_bench_views.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <thread>

#include "grace/files/mapped_file.h"

namespace grace::app {
namespace {

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

template <typename Get>
std::vector<double> values_of(const KernelFigure& figure, Get get) {
  std::vector<double> values;
  for (const KernelRound& round : figure.rounds) values.push_back(get(round));
  return values;
}
template <typename Get>
double median_of(const KernelFigure& figure, Get get) {
  return median(values_of(figure, get));
}

double rate(const KernelRound& r) { return r.work.operations / r.seconds; }
double read_rate(const KernelRound& r) { return r.work.bytes / r.seconds; }
double of_peak(const KernelRound& r) { return r.arithmetic_s() / r.seconds; }
double of_memory(const KernelRound& r) { return r.memory_s() / r.seconds; }
double of_roofline(const KernelRound& r) { return r.roofline_share(); }
double seconds(const KernelRound& r) { return r.seconds; }
double against_peer(const KernelRound& r) { return r.peer_seconds / r.seconds; }

bool has_peer(const KernelFigure& figure) {
  return std::ranges::all_of(figure.rounds, [](const KernelRound& r) { return r.peer_seconds > 0; });
}
bool is_bound_by_memory(const KernelFigure& figure) {
  return median_of(figure, of_memory) > median_of(figure, of_peak);
}

std::string time_text(double s) {
  return s < 1e-3 ? fmt::format("{:.1f} us", s * 1e6) : fmt::format("{:.2f} ms", s * 1e3);
}

std::vector<std::string> row_of(const KernelFigure& figure) {
  const auto [lowest, highest] = std::ranges::minmax(values_of(figure, of_roofline));
  return {figure.name,
          time_text(median_of(figure, seconds)),
          fmt::format("{:.1f}", median_of(figure, rate) / 1e9),
          fmt::format("{:.0f} %", 100 * median_of(figure, of_peak)),
          fmt::format("{:.1f}", median_of(figure, read_rate) / 1e9),
          fmt::format("{:.0f} %", 100 * median_of(figure, of_memory)),
          is_bound_by_memory(figure) ? "DRAM" : "arithmetic",
          fmt::format("{:.0f} % ({:.0f}..{:.0f})", 100 * median_of(figure, of_roofline), 100 * lowest,
                      100 * highest),
          has_peer(figure) ? fmt::format("{:.2f} x", median_of(figure, against_peer)) : "-"};
}

report::Table table_of(const KernelFigures& group) {
  report::Table table{group.title,
                      {"", "time", "GFLOP/s", "of peak", "GB/s", "of DRAM", "bound", "of roofline",
                       fmt::format("vs {}", kPeerName)},
                      {}};
  for (const KernelFigure& figure : group.figures) table.rows.push_back(row_of(figure));
  return table;
}

// The ceilings, over all rounds, of each product.
report::Table ceilings_table(const KernelReport& report) {
  report::Table table{"Ceilings, while that was measured", {"", "median", "lowest", "highest"}, {}};
  std::vector<std::string> products;
  for (const KernelFigures& group : report.groups)
    for (const KernelFigure& figure : group.figures)
      if (std::ranges::find(products, figure.product) == products.end()) products.push_back(figure.product);
  const auto add = [&](const std::string& name, const std::vector<double>& values, const char* unit) {
    const auto [lowest, highest] = std::ranges::minmax(values);
    table.rows.push_back({name, fmt::format("{:.1f} {}", median(values) / 1e9, unit),
                          fmt::format("{:.1f}", lowest / 1e9), fmt::format("{:.1f}", highest / 1e9)});
  };
  std::vector<double> memory;
  for (const std::string& product : products) {
    std::vector<double> peaks;
    for (const KernelFigures& group : report.groups)
      for (const KernelFigure& figure : group.figures)
        for (const KernelRound& round : figure.rounds) {
          if (figure.product == product) peaks.push_back(round.ceiling.operations_per_s);
          if (product == products.front()) memory.push_back(round.ceiling.bytes_per_s);
        }
    add(product, peaks, "GFLOP/s");
  }
  if (!memory.empty()) add("DRAM, read", memory, "GB/s");
  for (const kernels::Peak& peak : report.in_registers)
    table.rows.push_back({fmt::format("{}, once", peak.product),
                          fmt::format("{:.1f} GFLOP/s", peak.operations_per_s / 1e9), "", ""});
  return table;
}

std::string options_line(const KernelReport& report) {
  const KernelOptions& o = report.options;
  return fmt::format("{}; {} in {}, {} thread{}; {} rounds, median (lowest..highest).", o.shape.name,
                     name_of(o.arithmetic.numbers), name_of(o.arithmetic.instructions), o.threads,
                     o.threads == 1 ? "" : "s", report.rounds);
}

std::vector<std::string> notes_of(const KernelReport& report) {
  std::vector<std::string> notes{options_line(report), fmt::format("Processor: {}.", processor_name())};
  if (const std::string lacking = lacking_instructions(); !lacking.empty())
    notes.push_back(fmt::format("This processor has no {}: nothing here says how fast that is.", lacking));
  notes.emplace_back(
      "Each result was first compared with the reference's on a few rows. The ceilings are measured right "
      "before and right after each figure, on the same threads. Of roofline: the longer of operations at the "
      "peak and of bytes at DRAM's rate, over the time it took. Bytes are those of weights and of cached "
      "keys "
      "and values, which no cache can hold from one use to the next; activations count nothing.");
  notes.push_back(
      peer_version().empty()
          ? fmt::format("{} was not built in, so that nothing stands beside the kernels.", kPeerName)
          : fmt::format(
                "vs {}: the time of {} in as many threads over ours, in turn with it. It finds rows of "
                "its own type, and of an expert it computes the products alone.",
                kPeerName, peer_version()));
  return notes;
}

Json json_of(const KernelRound& round) {
  Json json = {{"seconds", round.seconds},
               {"operations", round.work.operations},
               {"bytes", round.work.bytes},
               {"peak_operations_per_s", round.ceiling.operations_per_s},
               {"peak_bytes_per_s", round.ceiling.bytes_per_s},
               {"of_roofline", round.roofline_share()}};
  if (round.peer_seconds > 0) json["peer_seconds"] = round.peer_seconds;
  return json;
}

Json json_of(const KernelFigure& figure) {
  Json rounds = Json::array();
  for (const KernelRound& round : figure.rounds) rounds.push_back(json_of(round));
  return {{"name", figure.name},
          {"seconds", median_of(figure, seconds)},
          {"of_peak", median_of(figure, of_peak)},
          {"of_memory", median_of(figure, of_memory)},
          {"of_roofline", median_of(figure, of_roofline)},
          {"bound", is_bound_by_memory(figure) ? "memory" : "arithmetic"},
          {"product", figure.product},
          {"error", figure.error},
          {"error_bound", figure.bound},
          {"rounds", rounds}};
}

Json json_of(const KernelReport& report) {
  Json groups = Json::array();
  for (const KernelFigures& group : report.groups) {
    Json figures = Json::array();
    for (const KernelFigure& figure : group.figures) figures.push_back(json_of(figure));
    groups.push_back({{"title", group.title}, {"kernels", figures}});
  }
  const KernelOptions& o = report.options;
  return {{"machine", processor_name()},
          {"lacking", lacking_instructions()},
          {"shape", o.shape.name},
          {"instructions", name_of(o.arithmetic.instructions)},
          {"dtype", name_of(o.arithmetic.numbers)},
          {"threads", o.threads},
          {"peer", peer_version()},
          {"groups", groups}};
}

report::BarChart bars_of(const KernelFigures& group) {
  report::BarChart bars{
      group.title, "Per cent of the roofline, of the peak and of DRAM's rate; medians.", {}, {}};
  report::Series roofline{"of roofline", {}}, peak{"of peak", {}}, memory{"of DRAM", {}};
  for (const KernelFigure& figure : group.figures) {
    bars.labels.push_back(figure.name);
    roofline.values.push_back(100 * median_of(figure, of_roofline));
    peak.values.push_back(100 * median_of(figure, of_peak));
    memory.values.push_back(100 * median_of(figure, of_memory));
  }
  bars.series = {roofline, peak, memory};
  return bars;
}

}  // namespace

std::string processor_name() {
  std::string model = "unknown processor", family, number;
  const Result<std::string> info = read_text("/proc/cpuinfo");
  std::istringstream lines(info.ok() ? info.value() : "");
  for (std::string line; std::getline(lines, line) && !line.empty();) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || colon + 2 > line.size()) continue;
    const std::string key = line.substr(0, line.find_last_not_of("\t ", colon - 1) + 1);
    const std::string value = line.substr(colon + 2);
    if (key == "model name") model = value;
    if (key == "cpu family") family = value;
    if (key == "model") number = value;
  }
  const std::string which = family.empty() ? "" : fmt::format(" (family {}, model {})", family, number);
  return fmt::format("{}{}, {} cores", model, which, std::thread::hardware_concurrency());
}

std::string lacking_instructions() {
  using kernels::Instructions;
  const auto usable = kernels::usable_instructions();
  std::string list;
  for (const Instructions one :
       {Instructions::kAmx, Instructions::kAvx512Bf16, Instructions::kAvx512, Instructions::kAvx2})
    if (std::ranges::find(usable, one) == usable.end())
      list += (list.empty() ? "" : ", ") + std::string(name_of(one));
  return list;
}

Output output_of(const KernelReport& report) {
  Output output;
  report::Section charts{"Shares of the roofline", "", {}};
  for (const KernelFigures& group : report.groups) {
    output.blocks.push_back({table_of(group), {}});
    charts.pictures.emplace_back(bars_of(group));
  }
  output.page.sections.push_back(std::move(charts));
  output.blocks.push_back({ceilings_table(report), {}});
  output.notes = notes_of(report);
  output.page.title = fmt::format("Kernels at the sizes of {}", report.options.shape.name);
  for (const std::string& note : output.notes)
    output.page.summary += (output.page.summary.empty() ? "" : "\n") + note;
  output.json = json_of(report);
  return output;
}

}  // namespace grace::app
