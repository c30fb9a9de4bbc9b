#include "record.h"

#include <fmt/format.h>

#include <algorithm>

#include "grace/files/json_file.h"
#include "grace/files/mapped_file.h"

namespace grace::app {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 60;
constexpr std::int64_t kMostCells =
    1 << 20;  // ranks, steps, layers: beyond any run, so that a wrong file asks for no memory

// Fields of a layer's line, in their order.
struct Seconds {
  const char* name;
  double LayerCounters::*field;
};
constexpr Seconds kSeconds[] = {
    {"gate_s", &LayerCounters::gate_s},
    {"dispatch_s", &LayerCounters::dispatch_s},
    {"experts_s", &LayerCounters::experts_s},
    {"combine_s", &LayerCounters::combine_s},
    {"wait_s", &LayerCounters::wait_s},
    {"gate_cpu_s", &LayerCounters::gate_cpu_s},
    {"experts_cpu_s", &LayerCounters::experts_cpu_s},
    {"pack_cpu_s", &LayerCounters::pack_cpu_s},
    {"dispatch_begin_s", &LayerCounters::dispatch_begin_s},
    {"dispatch_end_s", &LayerCounters::dispatch_end_s},
    {"combine_begin_s", &LayerCounters::combine_begin_s},
    {"combine_end_s", &LayerCounters::combine_end_s},
};
struct Bytes {
  const char* name;
  std::int64_t LevelBytes::*field;
};
constexpr Bytes kBytes[] = {
    {"intra_node_payload", &LevelBytes::intra_node_payload},
    {"cross_node_payload", &LevelBytes::cross_node_payload},
    {"intra_node_header", &LevelBytes::intra_node_header},
    {"cross_node_header", &LevelBytes::cross_node_header},
};

Json json_of(const LevelBytes& bytes) {
  Json json;
  for (const Bytes& one : kBytes) json[one.name] = bytes.*one.field;
  return json;
}

Result<LevelBytes> level_bytes(const Json& line, const char* key, const std::string& place) {
  if (!line.contains(key)) return invalid_input(fmt::format("{}: {} is missing", place, key));
  if (!line.at(key).is_object()) return invalid_input(fmt::format("{}: {} is not an object", place, key));
  LevelBytes bytes;
  for (const Bytes& one : kBytes)
    bytes.*one.field = GRACE_TRY(get_int(line.at(key), one.name, place, 0, kMost));
  return bytes;
}

Status check_exchange(const char* name, double begin_s, double end_s, const std::string& place) {
  if (end_s >= begin_s) return {};
  return invalid_input(
      fmt::format("{}: {}_end_s {} is before {}_begin_s {}", place, name, end_s, name, begin_s));
}

Result<LayerCounters> layer_counters(const Json& line, const std::string& place) {
  LayerCounters one;
  one.tokens = GRACE_TRY(get_int(line, "tokens", place, 0, kMost));
  one.assignments = GRACE_TRY(get_int(line, "assignments", place, 0, kMost));
  one.dispatch = GRACE_TRY(level_bytes(line, "dispatch", place));
  one.combine = GRACE_TRY(level_bytes(line, "combine", place));
  for (const Seconds& time : kSeconds) {
    const double seconds = GRACE_TRY(get_number(line, time.name, place));
    if (seconds < 0) return invalid_input(fmt::format("{}: {} {} is negative", place, time.name, seconds));
    one.*time.field = seconds;
  }
  GRACE_TRY(check_exchange("dispatch", one.dispatch_begin_s, one.dispatch_end_s, place));
  GRACE_TRY(check_exchange("combine", one.combine_begin_s, one.combine_end_s, place));
  return one;
}

Result<std::vector<int>> node_sizes(const Json& line, const std::string& place, std::int64_t ranks) {
  const std::string where = place + ": devices_per_node";
  if (!line.contains("devices_per_node") || !line.at("devices_per_node").is_array())
    return invalid_input(where + " is not a list");
  std::vector<int> sizes;
  std::int64_t sum = 0;
  for (const Json& size : line.at("devices_per_node")) {
    if (!size.is_number_integer() || size.get<std::int64_t>() < 1 || size.get<std::int64_t>() > ranks)
      return invalid_input(fmt::format("{}: {} is outside [1, {}]", where, shown(size), ranks));
    sizes.push_back(static_cast<int>(size.get<std::int64_t>()));
    sum += sizes.back();
  }
  if (sum != ranks) return invalid_input(fmt::format("{} adds up to {}, not to {} ranks", where, sum, ranks));
  return sizes;
}

// Makes room for what the line announces.
Result<RunRecord> run_line(const Json& line, const std::string& place) {
  RunRecord record;
  if (!line.is_object()) return invalid_input(place + ": not a run record");
  record.model = GRACE_TRY(get_string(line, "model", place));
  record.cluster = GRACE_TRY(get_string(line, "cluster", place));
  record.transport = GRACE_TRY(get_string(line, "transport", place));
  record.dispatch = GRACE_TRY(get_string(line, "dispatch", place));
  record.combine = GRACE_TRY(get_string(line, "combine", place));
  record.strategy = GRACE_TRY(get_string(line, "strategy", place));
  record.prompts = GRACE_TRY(get_int(line, "prompts", place, 0, kMost));
  record.prompt_tokens = GRACE_TRY(get_int(line, "prompt_tokens", place, 0, kMost));
  record.new_tokens = GRACE_TRY(get_int(line, "new_tokens", place, 0, kMost));
  record.prefill_s = GRACE_TRY(get_number(line, "prefill_s", place));
  record.decode_s = GRACE_TRY(get_number(line, "decode_s", place));
  record.aligned = GRACE_TRY(get_bool(line, "aligned", place));
  record.one_clock = GRACE_TRY(get_bool(line, "one_clock", place));
  const std::int64_t ranks = GRACE_TRY(get_int(line, "ranks", place, 1, 1024));
  record.devices_per_node = GRACE_TRY(node_sizes(line, place, ranks));
  const std::int64_t steps = GRACE_TRY(get_int(line, "steps", place, 0, kMostCells));
  const std::int64_t layers = GRACE_TRY(get_int(line, "layers", place, 1, 1024));
  record.decode_steps = GRACE_TRY(get_int(line, "decode_steps", place, 0, steps));
  if (ranks * steps * layers > 16 * kMostCells)
    return invalid_input(place + ": more steps than a record holds");
  record.steps.assign(static_cast<std::size_t>(ranks),
                      std::vector(static_cast<std::size_t>(steps),
                                  std::vector<LayerCounters>(static_cast<std::size_t>(layers))));
  return record;
}

Json json_of(const RunRecord& record, std::size_t steps, std::size_t layers) {
  return {{"record", "run"},
          {"model", record.model},
          {"cluster", record.cluster},
          {"transport", record.transport},
          {"dispatch", record.dispatch},
          {"combine", record.combine},
          {"strategy", record.strategy},
          {"prompts", record.prompts},
          {"prompt_tokens", record.prompt_tokens},
          {"new_tokens", record.new_tokens},
          {"prefill_s", record.prefill_s},
          {"decode_s", record.decode_s},
          {"decode_steps", record.decode_steps},
          {"aligned", record.aligned},
          {"one_clock", record.one_clock},
          {"ranks", record.steps.size()},
          {"devices_per_node", record.devices_per_node},
          {"steps", steps},
          {"layers", layers}};
}

}  // namespace

Status write_record(const std::filesystem::path& path, const RunRecord& record) {
  const std::size_t steps = record.steps.empty() ? 0 : record.steps[0].size();
  const std::size_t layers = steps > 0 ? record.steps[0][0].size() : 0;
  std::string text = json_of(record, steps, layers).dump() + "\n";
  for (std::size_t step = 0; step < steps; ++step)
    for (std::size_t rank = 0; rank < record.steps.size(); ++rank)
      for (std::size_t layer = 0; layer < layers; ++layer) {
        const LayerCounters& one = record.steps[rank][step][layer];
        Json line = {{"record", "layer"},
                     {"step", step},
                     {"rank", rank},
                     {"layer", layer},
                     {"tokens", one.tokens},
                     {"assignments", one.assignments},
                     {"dispatch", json_of(one.dispatch)},
                     {"combine", json_of(one.combine)}};
        for (const Seconds& time : kSeconds) line[time.name] = one.*time.field;
        text += line.dump() + "\n";
      }
  return write_text_atomically(path, text);
}

Result<RunRecord> read_record(const std::filesystem::path& path) {
  return parse_record(GRACE_TRY(read_text(path)), path.string());
}

Result<RunRecord> parse_record(std::string_view text, const std::string& place) {
  RunRecord record;
  std::int64_t steps = 0, layers = 0, ranks = 0, number = 0;
  std::vector<char> seen;  // [steps, ranks, layers]
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string where = fmt::format("{}:{}", place, ++number);
    const Json line = GRACE_TRY(parse_json(text.substr(begin, end - begin), where));
    begin = end + 1;
    if (number == 1) {
      record = GRACE_TRY(run_line(line, where));
      ranks = static_cast<std::int64_t>(record.steps.size());
      steps = static_cast<std::int64_t>(record.steps[0].size());
      layers = steps > 0 ? static_cast<std::int64_t>(record.steps[0][0].size()) : 0;
      seen.assign(static_cast<std::size_t>(steps * ranks * layers), 0);
      continue;
    }
    if (!line.is_object()) return invalid_input(where + ": not a line of a run record");
    const std::int64_t step = GRACE_TRY(get_int(line, "step", where, 0, steps - 1));
    const std::int64_t rank = GRACE_TRY(get_int(line, "rank", where, 0, ranks - 1));
    const std::int64_t layer = GRACE_TRY(get_int(line, "layer", where, 0, layers - 1));
    char& here = seen[static_cast<std::size_t>((step * ranks + rank) * layers + layer)];
    if (here != 0)
      return invalid_input(
          fmt::format("{}: step {}, rank {}, layer {} is there twice", where, step, rank, layer));
    here = 1;
    record.steps[static_cast<std::size_t>(rank)][static_cast<std::size_t>(step)]
                [static_cast<std::size_t>(layer)] = GRACE_TRY(layer_counters(line, where));
  }
  if (number == 0) return invalid_input(place + ": an empty run record");
  const auto missing = std::ranges::find(seen, 0) - seen.begin();
  if (missing < std::ssize(seen))
    return invalid_input(fmt::format("{}: step {}, rank {}, layer {} is missing", place,
                                     missing / (ranks * layers), missing / layers % ranks, missing % layers));
  return record;
}

}  // namespace grace::app
