// Counts as comma-separated values: layer_id,expert_id,count. docs/formats/csv.md.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "grace/base/limits.h"
#include "grace/files/json_file.h"
#include "grace/files/mapped_file.h"
#include "grace/interop/import/common.h"

namespace grace {
namespace {

constexpr std::string_view kHeader = "layer_id,expert_id,count";

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.back() == '\r' || text.back() == ' ' || text.back() == '\t'))
    text.remove_suffix(1);
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  return text;
}

// Three whole numbers.
Status parse_line(std::string_view line, const std::string& place, std::int64_t (&values)[3]) {
  constexpr std::string_view kNames[3] = {"layer_id", "expert_id", "count"};
  constexpr std::int64_t kBounds[3] = {kMaxDecoderLayer, kMaxExperts - 1, std::int64_t{1} << 46};
  std::string_view rest = line;
  for (std::size_t i = 0; i < 3; ++i) {
    const std::size_t end = i < 2 ? rest.find(',') : rest.size();
    const std::string_view field = trimmed(rest.substr(0, end));
    const auto [stop, error] = std::from_chars(field.data(), field.data() + field.size(), values[i]);
    if (end == std::string_view::npos || error != std::errc() || stop != field.data() + field.size())
      return invalid_input(fmt::format("{}: {} is not {}", place, shown(Json(std::string(line))), kHeader));
    if (values[i] < 0 || values[i] > kBounds[i])
      return invalid_input(
          fmt::format("{}: {} is {}, outside [0, {}]", place, kNames[i], values[i], kBounds[i]));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return {};
}

bool recognises(std::span<const std::filesystem::path> files) {
  return std::ranges::all_of(files, [](const std::filesystem::path& path) {
    return path.extension() == ".csv" || first_bytes(path, kHeader.size()) == kHeader;
  });
}

Status read(std::span<const std::filesystem::path> files, const ImportOptions& options, RecordingSink& sink) {
  std::map<std::int64_t, std::map<std::int64_t, std::int64_t>> counts;  // layer -> expert -> count
  std::int64_t largest = -1;
  for (const std::filesystem::path& path : files) {
    const std::string text = GRACE_TRY(read_text(path));
    std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> line_of;  // in this file
    std::int64_t number = 0;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      const std::string_view line = trimmed(std::string_view(text).substr(at, end - at));
      at = end + 1;
      ++number;
      if (line.empty() || (number == 1 && line == kHeader)) continue;
      const std::string place = fmt::format("{}:{}", path.string(), number);
      std::int64_t values[3] = {};
      GRACE_TRY(parse_line(line, place, values));
      const auto [first, is_new] = line_of.emplace(std::pair(values[0], values[1]), number);
      if (!is_new)
        return invalid_input(fmt::format("{}: layer {}, expert {} stands in line {} already", place,
                                         values[0], values[1], first->second));
      std::int64_t& sum = counts[values[0]][values[1]];
      if (__builtin_add_overflow(sum, values[2], &sum))
        return invalid_input(fmt::format("{}: counts overflow", place));
      largest = std::max(largest, values[1]);
    }
    GRACE_TRY(sink.read_bytes(std::ssize(text)));
  }
  if (counts.empty()) return {};
  LoadProfile profile;
  if (options.num_experts > 0 && largest >= options.num_experts)
    return invalid_input(
        fmt::format("{}: expert {} is outside [0, {})", files[0].string(), largest, options.num_experts));
  profile.num_experts = options.num_experts > 0 ? options.num_experts : static_cast<int>(largest) + 1;
  if (options.num_experts == 0)
    sink.warn(fmt::format(
        "the number of experts is not in the source: taken as the largest id + 1, {}; --num-experts says it",
        profile.num_experts));
  for (const auto& [layer, of_layer] : counts) {
    std::vector<std::int64_t>& loads =
        profile.loads.emplace_back(static_cast<std::size_t>(profile.num_experts), 0);
    for (const auto& [expert, count] : of_layer) loads[static_cast<std::size_t>(expert)] = count;
    profile.decoder_layers.push_back(static_cast<int>(layer));
  }
  if (!options.decoder_layers.empty() || options.dense_layers >= 0)
    profile.decoder_layers =
        GRACE_TRY(decoder_layers_of(profile.loads.size(), options, files[0].string(), sink));
  return sink.set_loads(std::move(profile));
}

}  // namespace

Importer csv_importer() { return {"csv", "lines of layer_id,expert_id,count", recognises, read}; }

}  // namespace grace
